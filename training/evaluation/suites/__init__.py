"""Compositional suites in their published formats, one description each."""

from slipform_training.evaluation.suites.aro import (
    COCO_ORDER,
    FLICKR30K_ORDER,
    VG_ATTRIBUTION,
    VG_RELATION,
)
from slipform_training.evaluation.suites.crepe import SUGARCREPE, SUGARCREPE_PP, SUGARCREPE_PP_TEXT
from slipform_training.evaluation.suites.crossed import (
    BIVLC,
    COLA,
    COLORSWAP,
    EQBEN,
    MMVP_VLM,
    WINOGROUND,
)
from slipform_training.evaluation.suites.suite import (
    ImageRef,
    ImageRoots,
    Reading,
    Request,
    Suite,
    SuiteItem,
)
from slipform_training.evaluation.suites.valse import VALSE
from slipform_training.evaluation.suites.vl_checklist import VL_CHECKLIST
from slipform_training.evaluation.suites.whatsup import WHATSUP

SUITES: dict[str, Suite] = {
    suite.name: suite
    for suite in (
        SUGARCREPE,
        SUGARCREPE_PP,
        SUGARCREPE_PP_TEXT,
        VG_RELATION,
        VG_ATTRIBUTION,
        COCO_ORDER,
        FLICKR30K_ORDER,
        VALSE,
        WINOGROUND,
        COLA,
        WHATSUP,
        VL_CHECKLIST,
        BIVLC,
        COLORSWAP,
        MMVP_VLM,
        EQBEN,
    )
}

__all__ = ["SUITES", "ImageRef", "ImageRoots", "Reading", "Request", "Suite", "SuiteItem"]
