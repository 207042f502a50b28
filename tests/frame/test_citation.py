"""CITATION.cff is what readers of the Citation File Format 1.2.0 expect, and of this version."""

from __future__ import annotations

import datetime
import re

import pytest
import yaml

from support.documents import ROOT

CITATION = yaml.safe_load((ROOT / "CITATION.cff").read_text())

# From the format's schema (github.com/citation-file-format, schema-guide 1.2.0).
REQUIRED = {"authors", "cff-version", "message", "title"}
ALLOWED = REQUIRED | {
    *("abstract", "commit", "contact", "date-released", "doi", "identifiers", "keywords"),
    *("license", "license-url", "preferred-citation", "references", "repository", "type"),
    *("repository-artifact", "repository-code", "url", "version"),
}
REFERENCE_REQUIRED = {"authors", "title", "type"}
REFERENCE_TYPES = {"article", "conference-paper", "generic", "report", "software"}
PERSON = {"affiliation", "alias", "email", "family-names", "given-names", "name-particle", "orcid"}
ENTITY = {"name", "alias", "email", "orcid", "website", "date-start", "date-end"}


def test_the_keys_are_those_of_the_schema():
    assert set(CITATION) >= REQUIRED
    assert set(CITATION) <= ALLOWED
    assert CITATION["cff-version"] == "1.2.0"
    assert CITATION["type"] in ("software", "dataset")
    assert re.fullmatch(r"[\w.-]+", CITATION["license"])
    for name in ("message", "title", "abstract"):
        assert isinstance(CITATION[name], str)
        assert CITATION[name].strip()
    if "date-released" in CITATION:
        assert isinstance(CITATION["date-released"], datetime.date)


@pytest.mark.parametrize("entry", CITATION["references"], ids=lambda entry: entry["url"])
def test_a_reference_has_what_the_schema_asks_for(entry):
    assert set(entry) >= REFERENCE_REQUIRED
    assert entry["type"] in REFERENCE_TYPES
    assert isinstance(entry["year"], int)
    assert re.fullmatch(r"https://arxiv\.org/abs/\d{4}\.\d{5}", entry["url"])
    if entry["type"] == "conference-paper" and "conference" in entry:
        assert set(entry["conference"]) >= {"name"}


def test_authors_are_persons_or_entities():
    for owner in (CITATION, *CITATION["references"]):
        assert owner["authors"]
        for author in owner["authors"]:
            is_entity = "name" in author
            assert set(author) <= (ENTITY if is_entity else PERSON)
            assert is_entity or author["family-names"]


def test_it_is_of_this_version_and_cites_the_papers_of_the_methods():
    import slipform_kernels

    assert str(CITATION["version"]) == slipform_kernels.__version__
    assert [entry["url"].rpartition("/")[2] for entry in CITATION["references"]] == [
        "2604.13313",
        "2606.13288",
    ]
    changelog = (ROOT / "CHANGELOG.md").read_text()
    assert f"## [{slipform_kernels.__version__}]" in changelog
