"""What is available here, and why not what is missing: the text of `slipform doctor`.

Nothing of the package is imported at the top, so that the report can be made where torch is
missing or broken: `python slipform_kernels/doctor.py` then still works.
"""

from __future__ import annotations

import importlib
import importlib.util
import json
import os
import platform
import re
import shlex
import shutil
import sys
from collections.abc import Callable, Iterator
from importlib import metadata
from pathlib import Path
from types import ModuleType
from urllib.parse import urlsplit
from urllib.request import url2pathname

DISTRIBUTION = "slipform-kernels"
FOLDER = Path(__file__).resolve().parent
COMPILERS = ("c++", "g++", "clang++")
EXTRAS = ("train", "eval", "hf", "images", "boxes", "ray", "docs", "test", "dev")

Line = tuple[str, str]


def report() -> str:
    """Plain text on versions, backends, the build, devices, environment and extras.

    Never raises: what fails is named in its place. Every line about something missing ends in the
    command that would change it, after an arrow.
    """
    sections: list[tuple[str, Callable[[], Iterator[Line]]]] = [
        ("versions", _versions),
        ("processor", _processor),
        ("backends", _backends),
        ("extension", _extension),
        ("GPU", _gpu),
        ("environment", _environment),
        ("extras", _extras),
    ]
    text = []
    for title, section in sections:
        lines = _guarded(section)
        text += [title, *(_format(label, value) for label, value in lines), ""]
    return "\n".join(text).rstrip()


def native_line() -> str:
    """One line on the extension, for the end of an install."""
    return "; ".join(f"extension {label}: {value}" for label, value in _guarded(_extension)[:1])


def _guarded(section: Callable[[], Iterator[Line]]) -> list[Line]:
    lines: list[Line] = []
    try:
        lines.extend(section())
    except Exception as error:  # the report must come out whatever is broken
        lines.append(("failed", _first_line(error)))
    return lines


def _format(label: str, value: str) -> str:
    return f"  {label:<22}{value}"


def _first_line(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}".strip().partition("\n")[0]


def _import(name: str) -> tuple[ModuleType | None, str]:
    """The module, or None and what importing it raised; a broken library may raise anything."""
    try:
        return importlib.import_module(name), ""
    except Exception as error:
        return None, _first_line(error)


def _with_command(text: str, command: str) -> str:
    return f"{text}  ->  {command}"


def _checkout() -> bool:
    return (FOLDER.parent / "pyproject.toml").is_file()


def _pip() -> str:
    """`pip` where that name is this Python's own, else the full command."""
    found = shutil.which("pip")
    own = found is not None and Path(found).parent == Path(sys.executable).parent
    return "pip" if own else f"{shlex.quote(sys.executable)} -m pip"


def _install(extra: str = "") -> str:
    suffix = f"[{extra}]" if extra else ""
    wanted = f'-e ".{suffix}"' if _checkout() else f'"{DISTRIBUTION}{suffix}"'
    return f"{_pip()} install {wanted}"


def _rebuild() -> str:
    if _checkout():
        return f"{_pip()} install -e ."
    source = _installed_from() or DISTRIBUTION
    return f"{_pip()} install --force-reinstall --no-deps --no-cache-dir {source}"


def _installed_from() -> str | None:
    """The folder that pip installed from, if it is still there (PEP 610)."""
    try:
        record = metadata.distribution(DISTRIBUTION).read_text("direct_url.json")
        url = str(json.loads(record or "{}").get("url", ""))
    except (metadata.PackageNotFoundError, ValueError):
        return None
    path = url2pathname(urlsplit(url).path) if url.startswith("file://") else ""
    return shlex.quote(path) if path and Path(path, "pyproject.toml").is_file() else None


def _versions() -> Iterator[Line]:
    try:
        where = "checkout" if _checkout() else "installed package"
        yield DISTRIBUTION, f"{metadata.version(DISTRIBUTION)}, {where}"
    except metadata.PackageNotFoundError:
        yield DISTRIBUTION, _with_command("a source tree that is not installed", _install())
    yield "python", f"{platform.python_version()} ({platform.system()} {platform.machine()})"
    torch, error = _import("torch")
    if torch is None:
        yield "torch", _with_command(f"cannot be imported ({error})", f"{_pip()} install torch")
    else:
        yield "torch", f"{torch.__version__}, {torch.get_num_threads()} threads"


def _processor() -> Iterator[Line]:
    yield "cores", f"{os.cpu_count()}"
    flags = set()
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.is_file():
        line = re.search(r"^(?:flags|Features)\s*:(.*)$", cpuinfo.read_text(), re.MULTILINE)
        flags = set(line[1].split()) if line else set()
    wanted = ("avx2", "fma", "avx512f", "avx512bw", "avx512_bf16", "amx_bf16", "asimd", "sve")
    found = [name for name in wanted if name in flags]
    if flags:
        yield "vector features", ", ".join(found) or "none of those used here"
    native, _ = _import("slipform_kernels._native")
    if native is not None:
        yield "levels usable", ", ".join(native.levels())
        yield "level in use", native.level()
        yield "fused kernels", _fused(native)


def _fused(native: ModuleType) -> str:
    """Features for which the whole loss is computed with products of the extension's own."""
    large = (8192, 8192, 512)
    units = {"fp32": "AVX-512", "bf16": "AMX" if native.level() == "amx" else "AVX-512"}
    own = [f"{name} ({units[name]})" for name in units if native.fused(name == "bf16", *large)]
    return f"for {' and '.join(own)}; " * bool(own) + "products of other features are torch's"


def _backends() -> Iterator[Line]:
    dispatch, error = _import("slipform_kernels.dispatch")
    if dispatch is None:
        yield "none", f"slipform_kernels cannot be imported: {error}"
        return
    on_gpu = dispatch.triton_backend.unavailable()
    on_cpu = dispatch.native.unavailable()
    gpu_kernels = dispatch.native_cuda.unavailable()
    if dispatch.triton_backend.interpreted():
        text = "interpreted on the CPU, for tests: TRITON_INTERPRET is set"
        yield "triton (GPU)", _with_command(text, "unset TRITON_INTERPRET")
    else:
        yield "triton (GPU)", _state("triton", on_gpu, _triton_command(), "cuda")
    yield "native (GPU)", _state("native", gpu_kernels, _gpu_command(gpu_kernels or ""), "cuda")
    yield "native (CPU)", _state("native", on_cpu, _native_command())
    yield "torch (any device)", _state("torch", None, "")
    yield "reference (fp64)", _state("reference", None, "")
    forced = dispatch.override()
    usual = f"{'torch' if on_cpu else 'native'} on the CPU"
    if dispatch.torch.cuda.is_available():
        of_gpu = {"triton": on_gpu, "native": gpu_kernels, "torch": None}
        usual += f", {next(name for name, reason in of_gpu.items() if reason is None)} on the GPU"
    yield "in use", f"{forced}, forced by SLIPFORM_BACKEND" if forced else usual


def _state(name: str, unavailable: str | None, command: str, device: str = "cpu") -> str:
    if unavailable is not None:
        first = unavailable.partition("\n")[0]
        return _with_command(f"not available: {first}", command)
    try:
        return _check(name, device)
    except Exception as error:  # a backend that breaks must not hide the others
        return f"FAILS on a small problem: {_first_line(error)}"


def _check(name: str, device: str = "cpu") -> str:
    """A small problem on the backend, compared with a cross-entropy of torch."""
    import torch

    from slipform_kernels import two_way_cross_entropy

    rows = torch.linspace(-1, 1, 96).sin().view(6, 16).to(device)
    cols = torch.linspace(-2, 3, 96).cos().view(6, 16).to(device)
    target = torch.arange(6, device=device)
    expected = torch.nn.functional.cross_entropy(5 * rows @ cols.T, target, reduction="none")
    loss, _ = two_way_cross_entropy(rows, cols, 5.0, backend=name)
    error = float((loss - expected).abs().max())
    # Not "error > bound": nan must not pass.
    return "available" if error < 1e-4 else f"WRONG RESULTS: off by {error:.1e} on a small problem"


def _triton_command() -> str:
    if importlib.util.find_spec("triton") is None:
        return f"{_pip()} install triton"
    return "needs an NVIDIA GPU that torch can see"


def _gpu_command(reason: str) -> str:
    """The one command most likely to bring the CUDA kernels to use."""
    if "no CUDA device" in reason:
        return "needs an NVIDIA GPU that torch can see"
    if "built without CUDA" in reason:
        return _cuda_command(reason)
    capability = re.search(r"compute capability is (\d+)\.(\d+); the extension", reason)
    if capability:
        wanted = "".join(capability.groups())
        return f"SLIPFORM_CUDA=1 SLIPFORM_CUDA_ARCHS={wanted} {_rebuild()}"
    if "compute capability is below" in reason:
        return "needs a newer GPU"
    return _native_command()


def _native_command() -> str:
    """The one command most likely to bring the extension, from what the build has noted."""
    reason = str(_build_info().get("reason", ""))
    if _environment_error("SLIPFORM_CPU_LEVEL"):
        return "unset SLIPFORM_CPU_LEVEL"
    if "Python.h" in reason:
        return f"{_system_package('headers')} && {_rebuild()}"
    if "no C++ compiler" in reason and not any(map(shutil.which, COMPILERS)):
        return f"{_system_package('compiler')} && {_rebuild()}"
    return f"SLIPFORM_NATIVE=1 {_rebuild()}"


def _system_package(what: str) -> str:
    if sys.platform == "darwin":
        return "xcode-select --install"
    if shutil.which("dnf"):
        names = {"compiler": "gcc-c++", "headers": "python3-devel", "nvcc": "cuda-toolkit"}
        return f"dnf install {names[what]}"
    names = {"compiler": "g++", "headers": "python3-dev", "nvcc": "nvidia-cuda-toolkit"}
    return f"apt-get install {names[what]}"


def _build_info() -> dict[str, object]:
    path = FOLDER / "_build_info.json"
    return json.loads(path.read_text()) if path.is_file() else {}


def _extension() -> Iterator[Line]:
    info = _build_info()
    if not info:
        yield "built", _with_command("unknown, the package was not installed", _rebuild())
        return
    reason = str(info["reason"]).strip()
    if not info["native"]:
        yield "built", _with_command(f"no: {reason.partition(chr(10))[0]}", _native_command())
        return
    levels = info["levels"]
    yield "built", f"yes, levels {', '.join(levels) if isinstance(levels, list) else levels}"
    yield "compiler", str(info["compiler"])
    if reason:
        yield "note", reason
    if sys.platform.startswith("linux"):
        yield "CUDA kernels", _cuda_build(info)


def _cuda_build(info: dict[str, object]) -> str:
    """For which GPUs the extension holds kernels, or why for none, and how to get them."""
    reason = str(info.get("cuda_reason", "")).strip().partition("\n")[0]
    if not info.get("cuda"):
        return _with_command(
            f"no: {reason or 'built before there were any'}", _cuda_command(reason)
        )
    built = info["cuda_architectures"]
    assert isinstance(built, list)
    names = [f"{architecture[:-1]}.{architecture[-1]}" for architecture in built]
    text = f"for compute capability {', '.join(names)}, PTX of the last ({info['nvcc']})"
    return f"{text}; {reason}" if reason else text


def _cuda_command(reason: str) -> str:
    """The one command most likely to bring the CUDA kernels."""
    if "no nvcc: CUDA_HOME is not set" in reason:
        return f"{_system_package('nvcc')} && SLIPFORM_CUDA=1 {_rebuild()}"
    if "no nvcc" in reason:
        return f"unset CUDA_HOME CUDA_PATH && {_rebuild()}"
    if re.search("unsupported .*version", reason):
        return f"CXX=<a compiler that this nvcc supports> SLIPFORM_CUDA=1 {_rebuild()}"
    return f"SLIPFORM_CUDA=1 {_rebuild()}"


def _gpu() -> Iterator[Line]:
    torch, error = _import("torch")
    if torch is None:
        yield "CUDA", f"unknown, torch cannot be imported ({error})"
        return
    if torch.cuda.is_available():
        for index in range(torch.cuda.device_count()):
            major, minor = torch.cuda.get_device_capability(index)
            yield (
                f"CUDA {index}",
                f"{torch.cuda.get_device_name(index)}, capability {major}.{minor}",
            )
    elif torch.version.cuda:
        yield "CUDA", f"no device (torch is built for CUDA {torch.version.cuda})"
    else:
        yield "CUDA", "none (torch is a CPU build)"
    yield "note", "what triton does not serve on a GPU, native does, and torch what both do not"


def _environment_error(name: str) -> str:
    """Why the value of the variable cannot be used, or ""."""
    if name in ("SLIPFORM_NATIVE", "SLIPFORM_CUDA"):
        value = os.environ.get(name)
        return "" if value in (None, "0", "1", "auto") else "expected 0, 1 or auto"
    if name == "SLIPFORM_BACKEND":
        dispatch, _ = _import("slipform_kernels.dispatch")
        try:
            named = dispatch.override() if dispatch else None
        except ValueError as error:
            return str(error)
        modules = {"native": ("native", "native_cuda"), "triton": ("triton_backend",)}
        reasons = [getattr(dispatch, name).unavailable() for name in modules.get(named or "", ())]
        return "; ".join(map(str, reasons)) if reasons and all(reasons) else ""
    if name == "SLIPFORM_MATRIX_BYTES":
        engine, _ = _import("slipform_kernels.engine")
        try:
            if engine is not None:
                engine.kept_bytes()
        except ValueError as error:
            return str(error)
        return ""
    if name == "SLIPFORM_CUDA_ARCHS":
        return ""
    native, _ = _import("slipform_kernels._native")
    try:
        if native is not None:
            native.level()
    except RuntimeError as error:
        return str(error)
    return ""


def _environment() -> Iterator[Line]:
    when = {
        "SLIPFORM_BACKEND": "at every call",
        "SLIPFORM_MATRIX_BYTES": "at every call",
        "SLIPFORM_CPU_LEVEL": "by the extension",
        "SLIPFORM_NATIVE": "when the package is built",
        "SLIPFORM_CUDA": "when the package is built",
        "SLIPFORM_CUDA_ARCHS": "when the package is built",
    }
    for name, read in when.items():
        value = os.environ.get(name)
        if value is None:
            yield name, "not set"
        elif error := _environment_error(name):
            yield name, _with_command(f"{value!r} cannot be used: {error}", f"unset {name}")
        else:
            yield name, f"{value!r}, read {read}"


def _requirements(extra: str) -> Iterator[str]:
    """Names of the distributions that the extra asks for, those of nested extras included."""
    for requirement in metadata.requires(DISTRIBUTION) or []:
        if not re.search(rf"""extra\s*==\s*["']{extra}["']""", requirement):
            continue
        nested = re.match(rf"{DISTRIBUTION}\[([\w,]+)\]", requirement.replace("_", "-"))
        if nested:
            for one in nested[1].split(","):
                yield from _requirements(one)
        else:
            yield re.split(r"[^\w.-]", requirement, maxsplit=1)[0]


def _extras() -> Iterator[Line]:
    try:
        metadata.version(DISTRIBUTION)
    except metadata.PackageNotFoundError:
        yield "unknown", _with_command("the package is not installed", _install("train"))
        return
    for extra in EXTRAS:
        missing = [name for name in sorted(set(_requirements(extra))) if not _installed(name)]
        if missing:
            yield extra, _with_command(f"missing {', '.join(missing)}", _install(extra))
        else:
            yield extra, "complete"


def _installed(name: str) -> bool:
    try:
        metadata.version(name)
    except metadata.PackageNotFoundError:
        return False
    return True


if __name__ == "__main__":
    print(report())
