"""Two models on a compositional suite, and an interval for their difference.

    python examples/evaluate.py                                # composed scenes, two random models
    python examples/evaluate.py runs/negclip/model.pt runs/cement/model.pt \\
        --annotations sugar-crepe/data --images coco/val2017

The same by commands: `slipform eval --suite sugarcrepe ...` and `slipform eval compare`. What two
random models differ in is what their weights happen to prefer, and says nothing.
"""

import argparse
import json
from pathlib import Path
from tempfile import TemporaryDirectory

from slipform_training.evaluation.compare import compare, comparison_table
from slipform_training.evaluation.results import read_results
from slipform_training.evaluation.run import EvalSettings, run_evaluation
from slipform_training.scenes import Scenes, build_pairs, write_pairs

TINY = {
    "embed_dim": 32,
    "vision_cfg": {"image_size": 64, "layers": 1, "width": 64, "head_width": 32, "patch_size": 16},
    "text_cfg": {"context_length": 32, "vocab_size": 49408, "width": 32, "heads": 2, "layers": 1},
}


def made_suite(folder):
    """Pairs of captions in SugarCrepe's format with their images, and a model's configuration."""
    scenes = Scenes()
    write_pairs(build_pairs(scenes, per_category=20), scenes, folder)
    (folder / "tiny.json").write_text(json.dumps(TINY))
    return folder, folder / "images", [str(folder / "tiny.json")] * 2


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("models", nargs="*", help="two: checkpoints, or names of open_clip")
    parser.add_argument("--annotations", type=Path, help="SugarCrepe's data")
    parser.add_argument("--images", type=Path, help="COCO's val2017")
    args = parser.parse_args()
    if args.models and (len(args.models) != 2 or not args.annotations or not args.images):
        parser.error("expected two models, --annotations and --images, or nothing at all")

    with TemporaryDirectory() as scratch:
        folder = Path(scratch)
        annotations, images, models = args.annotations, args.images, args.models
        if not models:
            annotations, images, models = made_suite(folder)
        found = []
        for seed, model in enumerate(models):  # the seed draws the weights of a model without any
            settings = EvalSettings(
                suites=["sugarcrepe"],
                annotations={"sugarcrepe": annotations},
                images={"coco_val2017": images},
                model=model,
                seed=seed,
                out=folder / f"{seed}.json",
                cache=folder / "features",
            )
            _, table = run_evaluation(settings)
            print(table)
            found.append(read_results(settings.out))
        differences = compare(*found, resamples=2000)
        print(comparison_table(found, {str(found[1].path): differences}))


if __name__ == "__main__":
    main()
