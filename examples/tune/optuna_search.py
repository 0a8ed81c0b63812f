"""Optuna searches DP-SGD settings with a high accuracy and a small audited epsilon; each trial is a whole audit.

    pip install optuna==5.0.0
    python examples/tune/optuna_search.py [--search random] [--trials 8] [--output FOLDER]

Both goals may choose settings, because all bounds hold together: they share the error of the spec.
"""

import argparse

from ray import tune

import dpaudit

SPEC = {
    "name": "digits by DP-SGD",
    "data": {"name": "digits", "flat": True},
    "mechanism": {"name": "dp-sgd", "epsilon": 2.0, "model": {"name": "mlp", "hidden": [16], "epochs": 2}},
    "game": {"name": "label-canaries", "replays": 3},
}


def main() -> None:
    """Search, and print the trials."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--search", choices=["optuna", "random"], default="optuna")
    parser.add_argument("--trials", type=int, default=8)
    parser.add_argument("--output", help="folder of the trials; default: ~/ray_results")
    options = parser.parse_args()
    config = {"metric": "test_accuracy", "mode": "max", "num_samples": options.trials, "max_concurrent_trials": 2}
    if options.search == "optuna":
        from ray.tune.search.optuna import OptunaSearch

        config |= {"metric": None, "mode": None}
        goals = {"metric": ["test_accuracy", "audited_epsilon"], "mode": ["max", "min"], "seed": 0}
        config["search_alg"] = OptunaSearch(**goals)
    space = {
        "mechanism.epsilon": tune.loguniform(0.5, 8.0),
        "mechanism.model.epochs": tune.randint(1, 4),
    }
    tuner = tune.Tuner(
        dpaudit.objective(SPEC, trials=options.trials),
        param_space=space,
        tune_config=tune.TuneConfig(**config),
        run_config=tune.RunConfig(storage_path=options.output, verbose=0),
    )
    trials = tuner.fit().get_dataframe()
    columns = ["config/mechanism.epsilon", "config/mechanism.model.epochs"]
    print(trials[[*columns, "test_accuracy", "audited_epsilon", "claimed_epsilon", "verdict"]].to_string())


if __name__ == "__main__":
    main()
