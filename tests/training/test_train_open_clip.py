"""open_clip_loss in place of open_clip's create_loss."""

from __future__ import annotations

import argparse
from types import SimpleNamespace

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


def test_open_clips_own_training_loop_ends_with_the_same_weights(tmp_path):
    """Two updates of open_clip_train's train_one_epoch, once with each side's loss."""
    from open_clip_train.train import train_one_epoch

    open_clip.add_model_config(tiny_model(tmp_path))
    arguments = Arguments(
        device="cpu", precision="fp32", accum_freq=1, skip_scheduler=True, grad_clip_norm=None,
        log_every_n_steps=100, batch_size=4, wandb=False,
    )  # fmt: skip
    torch.manual_seed(2)
    batches = [(torch.rand(4, 3, 32, 32), torch.randint(1, 49405, (4, 16))) for _ in range(2)]

    class Loader(list):
        num_batches, num_samples = 2, 8

    data = {"train": SimpleNamespace(dataloader=Loader(batches), set_epoch=lambda epoch: None)}
    trained = []
    for create_loss in (open_clip.create_loss, open_clip_loss):
        torch.manual_seed(0)
        model = open_clip.create_model(NAME, output_dict=True)
        start = torch.cat([value.detach().flatten().clone() for value in model.parameters()])
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, eps=1e-6)
        loss = create_loss(arguments)
        train_one_epoch(model, data, loss, 0, optimizer, None, None, None, arguments)
        trained.append(torch.cat([value.detach().flatten() for value in model.parameters()]))
    assert (trained[0] - start).norm() > 0
    assert (trained[0] - trained[1]).norm() < 1e-2 * (trained[0] - start).norm()
