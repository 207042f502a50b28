"""Another build of the extension's CPU half in place of the installed one.

A process that has SLIPFORM_CPU_MODULE, the path of the module that tests/native/cpu.py makes, tests
that one under the name "native"; see tests/native/test_cpu.py.
"""

from __future__ import annotations

import importlib.util
import os

from slipform_kernels.backends import native

VARIABLE = "SLIPFORM_CPU_MODULE"
ON = VARIABLE in os.environ


def install(path: str) -> None:
    spec = importlib.util.spec_from_file_location("_native", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    native._native = module


if ON:
    install(os.environ[VARIABLE])
