"""A FLARE job in the simulator, whose clients guard their updates: ``python job.py WORKSPACE``.

Two clients of one digit each train ``my_net:Net`` for one step in one round.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from keyhole_filter import GuardFilter
from my_net import Net
from nvflare.app_opt.pt.recipes.fedavg import FedAvgRecipe
from nvflare.recipe import SimEnv

HERE = Path(__file__).parent
LEARNING_RATE = 0.05


def make_recipe(defense: str) -> FedAvgRecipe:
    """Federated averaging with a guard in both chains of each client."""
    recipe = FedAvgRecipe(
        name="guarded",
        min_clients=2,
        num_rounds=1,
        model=Net(),
        train_script=str(HERE / "train.py"),
        train_args=f"--lr {LEARNING_RATE} --defense {defense}",
    )
    images = {"site-1": [0], "site-2": [1]}
    for add in (recipe.add_client_input_filter, recipe.add_client_output_filter):
        add(
            GuardFilter(
                model="my_net:Net",
                data="digits",
                images=images,
                lr=LEARNING_RATE,
                defense=defense,
                seconds=0,
            ),
            tasks=["train"],
        )
    return recipe


def main() -> None:
    """Runs the job."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split(":")[0])
    parser.add_argument("workspace", type=Path)
    parser.add_argument("--defense", default="none", help="any of `keyhole list defenses`")
    options = parser.parse_args()
    env = SimEnv(num_clients=2, workspace_root=str(options.workspace))
    run = make_recipe(options.defense).execute(env)
    print("status:", run.get_status(), "| result:", run.get_result())


if __name__ == "__main__":
    main()
