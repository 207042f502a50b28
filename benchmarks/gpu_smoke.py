"""Every kernel of the native backend once, on small ragged problems: for compute-sanitizer.

python -m benchmarks.gpu_smoke
"""

from __future__ import annotations

import torch

from slipform_kernels import two_way_cross_entropy


def step(dtype: torch.dtype, D: int, precision: str | None) -> None:
    """Forward and backward with all options; D = 40 takes the fused kernels where they serve."""
    R, C, K = 150, 333, 2
    rows, cols = (torch.randn(n, D, device="cuda").to(dtype).requires_grad_() for n in (R, C))
    scale = torch.tensor(3.0, device="cuda", requires_grad=True)
    bias = torch.randn(C, device="cuda", requires_grad=True)
    margin = torch.rand(R, K, device="cuda", requires_grad=True)
    row_loss, col_loss = two_way_cross_entropy(
        rows, cols, scale, bias=bias, precision=precision, backend="native",
        row_target=torch.randint(-1, C, (R,), device="cuda"),
        col_target=torch.randint(-1, R, (C,), device="cuda"),
        hard_cols=torch.randint(-1, C, (R, K), device="cuda"), margin=margin,
        row_group=torch.randint(0, 50, (R,), device="cuda"),
        col_group=torch.randint(0, 50, (C,), device="cuda"),
    )  # fmt: skip
    (row_loss.sum() + col_loss.sum()).backward()


def main() -> None:
    for dtype in (torch.float32, torch.bfloat16, torch.float16):
        for D in (40, 33):
            step(dtype, D, None)
    step(torch.float32, 40, "tf32")
    torch.cuda.synchronize()
    print("every kernel ran")


if __name__ == "__main__":
    main()
