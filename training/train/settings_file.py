"""Reading settings from yaml and writing them back: unknown keys and wrong types are errors."""

from __future__ import annotations

import difflib
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from .config import TrainConfig, types_of

RESOLVED = "resolved.yaml"


class _Loader(yaml.SafeLoader):
    """Refuses a key that stands twice, of which yaml would keep the last without a word."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        seen: set[Any] = set()
        for key_node, _ in node.value:
            key = self.construct_object(key_node, deep=True)
            if key in seen:
                raise yaml.constructor.ConstructorError(
                    None, None, f"the key {key!r} stands twice", key_node.start_mark
                )
            seen.add(key)
        return super().construct_mapping(node, deep)


def read_settings(path: Path) -> dict[str, Any]:
    """The settings in a yaml file, checked by name and type.

    Raises ValueError that names the file and the key: not yaml, not a mapping, an unknown key (with
    the nearest known one), a value of another type. Raises FileNotFoundError.
    """
    try:
        found = yaml.load(path.read_text(encoding="utf-8"), Loader=_Loader)
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise ValueError(f"{path}: cannot be read as yaml ({error})") from error
    if found is None:
        return {}
    if not isinstance(found, dict):
        raise ValueError(f"{path}: got {type(found).__name__}, expected settings as `key: value`")
    return check_settings(found, where=str(path))


def check_settings(found: Mapping[Any, Any], *, where: str) -> dict[str, Any]:
    """The same settings, each of its type; ValueError as in read_settings."""
    types = types_of()
    checked = {}
    for key, value in found.items():
        if key not in types:
            near = difflib.get_close_matches(str(key).replace("-", "_"), types, n=1)
            hint = f"the nearest known one is {near[0]!r}" if near else "slipform train --help"
            raise ValueError(f"{where}: unknown key {key!r}; {hint}")
        checked[key] = _typed(key, value, *types[key], where=where)
    return checked


def _typed(name: str, value: Any, kind: type, optional: bool, *, where: str) -> Any:
    if value is None and optional:
        return None
    if kind is float and not isinstance(value, bool):
        # yaml reads 1e-6 as text, since its numbers have a dot.
        try:
            return float(value)
        except (TypeError, ValueError):
            pass
    elif type(value) is kind:
        return value
    expected = {"str": "text", "bool": "true or false", "int": "a whole number"}
    raise ValueError(
        f"{where}: {name}: got {value!r}, expected {expected.get(kind.__name__, 'a number')}"
        + (" or null" if optional else "")
    )


def write_settings(path: Path, config: TrainConfig) -> None:
    """Write the resolved settings as yaml, whole or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(path.name + ".tmp")
    temporary.write_text(
        yaml.safe_dump(config.to_dict(), sort_keys=False, allow_unicode=True), encoding="utf-8"
    )
    os.replace(temporary, path)
