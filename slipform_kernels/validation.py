"""Checks of the primitive's arguments; errors name the argument, what came, what was expected."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

FLOATS = (torch.float32, torch.bfloat16, torch.float16, torch.float64)
PRECISIONS = (None, "ieee", "tf32")
BACKENDS = (None, "triton", "native", "torch", "reference")


@dataclass(frozen=True, eq=False)
class Arguments:
    """The arguments that validation changes: dtypes under autocast, numbers made tensors."""

    rows: Tensor
    cols: Tensor
    scale: Tensor  # []
    bias: Tensor | None  # [] or [C]
    margin: Tensor | None
    precision: str


def validate(
    rows: Tensor,
    cols: Tensor,
    scale: Tensor | float,
    bias: Tensor | float | None,
    row_target: Tensor | None,
    col_target: Tensor | None,
    hard_cols: Tensor | None,
    margin: Tensor | None,
    row_group: Tensor | None,
    col_group: Tensor | None,
    precision: str | None,
    backend: str | None,
) -> Arguments:
    """Check everything that needs no tensor values, and normalise scalars. See functional.py."""
    args = validate_rows(rows, cols, scale, bias, row_target, precision, backend)
    rows, cols = args.rows, args.cols
    R, C = rows.shape[0], cols.shape[0]
    device = rows.device
    _check_target("col_target", col_target, C, "C", rows, cols)
    K = None
    if hard_cols is not None:
        _check_tensor("hard_cols", hard_cols)
        if hard_cols.ndim != 2:
            raise ValueError(f"hard_cols: got shape {_shape(hard_cols)}; expected [R, K], R = {R}")
        K = hard_cols.shape[1]
        _check_index("hard_cols", hard_cols, (R, K), "[R, K]", device)
    if margin is not None:
        _check_tensor("margin", margin)
        if hard_cols is None:
            raise ValueError(
                f"margin: got a tensor of shape {_shape(margin)} without hard_cols; expected "
                "hard_cols [R, K] to say which columns it belongs to"
            )
        _check_float("margin", margin, (R, K), "[R, K]", device)
    if (row_group is None) != (col_group is None):
        missing, given = (
            ("row_group", "col_group") if row_group is None else ("col_group", "row_group")
        )
        raise ValueError(f"{missing}: got None while {given} is given; expected both or neither")
    if row_group is not None and col_group is not None:
        _check_index("row_group", row_group, (R,), "[R]", device)
        _check_index("col_group", col_group, (C,), "[C]", device)
    return args if margin is None else replace(args, margin=margin.to(args.scale.dtype))


def validate_rows(
    rows: Tensor,
    cols: Tensor,
    scale: Tensor | float,
    bias: Tensor | float | None,
    row_target: Tensor | None,
    precision: str | None,
    backend: str | None,
) -> Arguments:
    """`validate` for a loss of the rows alone."""
    check_options(precision, backend)
    rows, cols = _features(rows, cols, precision)
    _check_target("row_target", row_target, rows.shape[0], "R", rows, cols)
    stats = torch.float64 if rows.dtype == torch.float64 else torch.float32
    return Arguments(
        rows,
        cols,
        scalar("scale", scale, rows.device, stats),
        _bias(bias, cols.shape[0], rows.device, stats),
        None,
        precision or "ieee",
    )


def check_options(precision: str | None, backend: str | None) -> None:
    """The options of `two_way_cross_entropy` must be ones that it knows."""
    _check_choice("precision", precision, PRECISIONS)
    _check_choice("backend", backend, BACKENDS)


def _features(rows: Tensor, cols: Tensor, precision: str | None) -> tuple[Tensor, Tensor]:
    check_matrix("rows", rows, "[R, D]")
    check_matrix("cols", cols, "[C, D]")
    if cols.shape[1] != rows.shape[1]:
        raise ValueError(
            f"cols: got shape {_shape(cols)}; expected [C, {rows.shape[1]}], the D of rows "
            f"{_shape(rows)}"
        )
    _check_device("cols", cols, rows.device)
    device_type = rows.device.type
    autocast = precision is None and rows.dtype != torch.float64 and device_type != "meta"
    if autocast and torch.is_autocast_enabled(device_type):
        dtype = torch.get_autocast_dtype(device_type)
        rows, cols = rows.to(dtype), cols.to(dtype)
    if cols.dtype != rows.dtype:
        raise TypeError(f"cols: got dtype {cols.dtype}; expected {rows.dtype}, the dtype of rows")
    return rows, cols


def check_matrix(name: str, value: Tensor, shape: str) -> None:
    """`value` must be a dense floating-point matrix without an empty dimension."""
    _check_tensor(name, value)
    if value.ndim != 2:
        raise ValueError(f"{name}: got shape {_shape(value)}; expected {shape}")
    if value.shape[0] == 0 or value.shape[1] == 0:
        raise ValueError(f"{name}: got shape {_shape(value)}; expected {shape}, none of them 0")
    if value.dtype not in FLOATS:
        raise TypeError(
            f"{name}: got dtype {value.dtype}; expected float32, bfloat16, float16 or float64"
        )
    if value.layout != torch.strided:
        raise TypeError(f"{name}: got layout {value.layout}; expected a dense tensor")


def scalar(name: str, value: Tensor | float, device: torch.device, dtype: torch.dtype) -> Tensor:
    """A number or a tensor [] or [1] as a tensor [] of this device and dtype, differentiable."""
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        return torch.full((), float(value), device=device, dtype=dtype)
    if not isinstance(value, Tensor):
        raise TypeError(
            f"{name}: got {type(value).__name__}; expected a float or a tensor of shape [] or [1]"
        )
    if value.shape not in ((), (1,)):
        raise ValueError(f"{name}: got shape {_shape(value)}; expected [] or [1]")
    if not value.is_floating_point():
        raise TypeError(f"{name}: got dtype {value.dtype}; expected a floating-point dtype")
    _check_device(name, value, device)
    return value.reshape(()).to(dtype)


def _bias(
    bias: Tensor | float | None, C: int, device: torch.device, dtype: torch.dtype
) -> Tensor | None:
    if bias is None:
        return None
    if isinstance(bias, Tensor) and (bias.ndim > 1 or (bias.ndim == 1 and bias.shape[0] != 1)):
        _check_float("bias", bias, (C,), "[], [1] or [C]", device)
        return bias.to(dtype)
    return scalar("bias", bias, device, dtype)


def _check_tensor(name: str, value: object) -> None:
    if not isinstance(value, Tensor):
        raise TypeError(f"{name}: got {type(value).__name__}; expected a tensor")


def _check_target(
    name: str, target: Tensor | None, length: int, letter: str, rows: Tensor, cols: Tensor
) -> None:
    R, C = rows.shape[0], cols.shape[0]
    if target is not None:
        _check_index(name, target, (length,), f"[{letter}]", rows.device)
    elif R != C:
        raise ValueError(
            f"{name}: got None with {R} rows and {C} cols; expected an int64 tensor of shape "
            f"[{length}] (the diagonal is the default only where both are equal)"
        )


def _check_device(name: str, value: Tensor, device: torch.device) -> None:
    if value.device != device:
        raise ValueError(
            f"{name}: got device {value.device}; expected {device}, the one of the row features"
        )


def _check_shape(name: str, value: Tensor, shape: tuple[int | None, ...], letters: str) -> None:
    if tuple(value.shape) != shape:
        numbers = ", ".join(str(n) for n in shape)
        raise ValueError(f"{name}: got shape {_shape(value)}; expected {letters} = [{numbers}]")


def _check_index(
    name: str, value: Tensor, shape: tuple[int | None, ...], letters: str, device: torch.device
) -> None:
    _check_tensor(name, value)
    if value.dtype != torch.int64:
        raise TypeError(f"{name}: got dtype {value.dtype}; expected torch.int64")
    _check_shape(name, value, shape, letters)
    _check_device(name, value, device)


def _check_float(
    name: str, value: Tensor, shape: tuple[int | None, ...], letters: str, device: torch.device
) -> None:
    if not value.is_floating_point():
        raise TypeError(f"{name}: got dtype {value.dtype}; expected a floating-point dtype")
    _check_shape(name, value, shape, letters)
    _check_device(name, value, device)


def _check_choice(name: str, value: object, choices: tuple[str | None, ...]) -> None:
    if value not in choices:
        expected = ", ".join(repr(c) for c in choices)
        raise ValueError(f"{name}: got {value!r}; expected one of {expected}")


def _shape(value: Tensor) -> str:
    return "[" + ", ".join(str(n) for n in value.shape) + "]"
