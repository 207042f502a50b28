"""open_clip_loss in place of open_clip's create_loss."""

from __future__ import annotations

import argparse

import pytest
import torch

pytest.importorskip("open_clip_train")
import open_clip

from slipform_training import open_clip_loss
from support.train_files import NAME, tiny_model


class Arguments(argparse.Namespace):
    """open_clip_train's arguments, as far as create_loss reads them."""

    def __init__(self, **changes):
        super().__init__(
            **{
                "distill": False, "model": "ViT-B-32", "siglip": False, "local_loss": False,
                "gather_with_grad": False, "rank": 0, "world_size": 1, "horovod": False,
                "loss_dist_impl": None, "coca_caption_loss_weight": 2.0,
                "coca_contrastive_loss_weight": 1.0, **changes,
            }
        )  # fmt: skip


@pytest.mark.parametrize("changes", [{}, {"siglip": True}, {"gather_with_grad": True}])
def test_in_place_of_create_loss_it_gives_open_clips_losses_and_gradients(changes):
    ours, theirs = open_clip_loss(Arguments(**changes)), open_clip.create_loss(Arguments(**changes))
    assert type(ours).__module__.startswith("slipform_kernels")
    grads = []
    for loss in (ours, theirs):
        torch.manual_seed(1)
        features = [torch.nn.functional.normalize(torch.randn(6, 8), dim=-1) for _ in range(2)]
        inputs = {
            "image_features": features[0].requires_grad_(),
            "text_features": features[1].requires_grad_(),
            "logit_scale": torch.tensor(10.0, requires_grad=True),
        }
        if changes.get("siglip"):
            inputs["logit_bias"] = torch.tensor(-10.0, requires_grad=True)
        outputs = loss(**inputs, output_dict=True)
        assert list(outputs) == ["contrastive_loss"]
        outputs["contrastive_loss"].backward()
        grads.append([outputs["contrastive_loss"], *(value.grad for value in inputs.values())])
    for left, right in zip(*grads, strict=True):
        torch.testing.assert_close(left, right, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(("changes", "kind"), [({"distill": True}, "distillation"),
                                               ({"model": "coca_ViT-B-32"}, "CoCa")])  # fmt: skip
def test_losses_that_slipform_lacks_are_open_clips_with_a_warning(changes, kind):
    with pytest.warns(UserWarning, match=f"no loss for {kind}; this run uses open_clip's"):
        loss = open_clip_loss(Arguments(**changes))
    assert type(loss) is type(open_clip.create_loss(Arguments(**changes)))
