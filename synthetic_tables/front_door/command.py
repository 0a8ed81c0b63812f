"""`dpaudit synthetic`: how much a synthetic table gives away of a training row, from three files."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from dpaudit.engine.cli.options import OUTPUT_FILE, json_option
from dpaudit.engine.exits import end_by_verdict, show_lines, tell
from dpaudit.errors import InputError
from dpaudit.registry import register


@register("verb", "synthetic", source="Ours")
@click.command()
@click.argument("train", type=click.Path())
@click.argument("holdout", type=click.Path())
@click.argument("synthetic_files", metavar="SYNTH...", type=click.Path(), nargs=-1, required=True)
@click.option("--claim", metavar="CLAIM", help="1, '1, 1e-5', rho=0.5 or mu=1; gives a verdict.")
@click.option(
    "--relation",
    type=click.Choice(["add-remove", "replace"]),
    default="add-remove",
    show_default=True,
    help="Neighbouring relation of the claim.",
)
@click.option("--groups", metavar="COLUMN", help="Column that names the person of each row; persons are audited.")
@click.option("--strata", metavar="COLUMN", help="Column within whose values the rows were split at random.")
@click.option(
    "--split",
    type=click.Choice(["random", "other"]),
    default="random",
    show_default=True,
    help="How the rows came into the two files; other: not at random, or unknown.",
)
@click.option("--tuned-on-holdout", is_flag=True, help="Settings of the generator were chosen by the holdout.")
@click.option("--columns", metavar="NAMES", help="Columns to compare, separated by commas.  [default: all]")
@click.option("--target", metavar="COLUMN", help="Column that the model of the utility predicts.  [default: the last]")
@click.option("--confidence", type=float, default=0.999, show_default=True, help="Confidence that a violation needs.")
@click.option("--seed", type=int, default=0, show_default=True, help="Seed of the pairs.")
@click.option("--output", "-o", type=OUTPUT_FILE, help="Also write a page with figures (HTML).")
@click.option("--verbose", "-v", is_flag=True, help="Also print all tests, attacks, usual measures and utility.")
@json_option
@click.option("--fail-on-violation", is_flag=True, help="Exit with 1 when a bound exceeds the claim.")
@click.option("--fail-on-inconclusive", is_flag=True, help="Exit with 4 when the rows could not reject the claim.")
def synthetic(
    train: str,
    holdout: str,
    synthetic_files: tuple[str, ...],
    claim: str | None,
    relation: str,
    groups: str | None,
    strata: str | None,
    split: str,
    tuned_on_holdout: bool,
    columns: str | None,
    target: str | None,
    confidence: float,
    seed: int,
    output: Path | None,
    verbose: bool,
    as_json: bool,
    fail_on_violation: bool,
    fail_on_inconclusive: bool,
) -> None:
    """Bound what a synthetic table gives away of its training rows.

    TRAIN holds the rows that it was fitted on, HOLDOUT rows of the same kind that it did not see, SYNTH its output; all
    CSV, TSV or JSON lines (plain, .gz, .xz or .bz2), Parquet or .npz. Several SYNTH are one release. If SYNTH is a
    folder, each of its files is a table of its own: one line for each, the largest bound first.

    Rows must have been split into TRAIN and HOLDOUT uniformly at random (all rows of a person together, see --groups).
    Each training row is paired with a random holdout row. How often attacks guess which row of a pair was trained on
    bounds epsilon for a replaced row. The split is tested without SYNTH. A split that the tests call not random, or
    --split other, never gives a violation. A split that is not random but passes the tests can give a false one.
    """
    from dpaudit.engine.answer.verdict import Verdict
    from dpaudit.engine.exits import in_json
    from dpaudit.synthetic_tables.front_door import auditing, ranking

    if (fail_on_violation or fail_on_inconclusive) and claim is None:
        option = "--fail-on-violation" if fail_on_violation else "--fail-on-inconclusive"
        raise InputError(f"{option} needs --claim: without a claim there is no verdict")
    options: dict[str, Any] = {
        "claim": claim,
        "relation": relation,
        "groups": groups,
        "strata": strata,
        "split": "other" if split == "other" else "random",
        "tuned_on_holdout": tuned_on_holdout,
        "columns": None if columns is None else [name.strip() for name in columns.split(",")],
        "target": target,
        "confidence": confidence,
        "seed": seed,
        "progress": lambda step: tell(f"{step} ..."),
    }
    if len(synthetic_files) == 1 and Path(synthetic_files[0]).is_dir():
        if output is not None:
            raise InputError("--output needs one table, got a folder: write the page of one of its files")
        ranked = ranking.rank_synthetic(train, holdout, synthetic_files[0], **options)
        show_lines(in_json(ranked) if as_json else ranked.text(verbose=verbose))
        audits = list(ranked.audits.values())
    else:
        audits = [auditing.synthetic(train, holdout, list(synthetic_files), **options)]
        show_lines(in_json(audits[0]) if as_json else audits[0].text(verbose=verbose))
    if output is not None:
        from dpaudit.synthetic_tables.front_door.page import write_page  # slow to import, because it loads Matplotlib

        write_page(output, audits[0])
    verdicts = {audit.verdict for audit in audits}
    end_by_verdict(
        rejected=bool(verdicts & {Verdict.VIOLATION, Verdict.UNDECIDED}),
        inconclusive=Verdict.INCONCLUSIVE in verdicts,
        fail_on_violation=fail_on_violation,
        fail_on_inconclusive=fail_on_inconclusive,
    )
