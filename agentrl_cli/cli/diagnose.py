"""`agentrl diagnose`: compare an algorithm's critic with the exact values of the courier."""

from __future__ import annotations

import math
import multiprocessing
import os
from concurrent.futures import ProcessPoolExecutor, as_completed
from pathlib import Path
from typing import TYPE_CHECKING, Any

from agentrl_cli.config.compose import ConfigDirs, compose_checked
from agentrl_cli.core.activity import Activity, Display
from agentrl_cli.core.errors import UserError
from agentrl_cli.core.terminal import echo_err
from agentrl_cli.exact_values import Arm, Row, arms, auc_keys, rows_of_critic, run_arm
from agentrl_cli.report.figures import style, svg

if TYPE_CHECKING:
    from matplotlib.figure import Figure

STATE_COLUMNS = {
    "bias": "bias of V",
    "r2": "R2 of V",
    "r2_turn": "R2 by turn",
    "sign": "right sign",
    "sign_grpo": "GRPO's sign",
}
ACTION_COLUMNS = {
    "estimate": "estimate", "policy_value": "policy's Q", "behaviour_value": "behaviour's Q",
}  # fmt: skip
HEALTHY = """\
Healthy: the first arm ranks actions (AUC) at 0.95 or better with 1 or 2 turns left, and at 0.90 or
better before. Its estimate is within 0.05 of the policy's Q. The controls, except Monte Carlo, stay
between 0.43 and 0.57. Success is above 67 %, which a policy reaches that always takes one road."""
HEALTHY_STATES = """\
Healthy: R2 of V is 0.5 or better, above that of a prediction by the turn number alone, and near 0
or below with shuffled rewards. The advantage has the right sign at the deciding turn in 85 % of
episodes. GRPO's is that of the reward relative to all episodes of the task. Self-AC and PPO have
the same sign while algo.gae_lambda is 1. With env.loss=1, the default, it is always right."""

HEALTHY_REWARDS = """\
Healthy: the reward ranks actions (AUC) clearly above 0.50. It compares the policy with the expert
and is no estimate of Q. The AUC nears 0.50 when both act alike."""


def diagnose(
    overrides: list[str],
    config_dirs: ConfigDirs,
    critic_updates: int,
    policy_updates: int,
    every: int,
) -> dict[str, Any]:
    """Run all arms and return the measurements by arm."""
    overrides = ["recipe=courier", *overrides]
    cfg = compose_checked(overrides, config_dirs)
    if "critic_warmup" not in cfg.algo:  # its policy trains from the first update
        critic_updates, policy_updates = 0, critic_updates + policy_updates
    base = Arm(
        str(cfg.choices.algo), overrides, critic_updates, policy_updates, every,
        config_dirs=config_dirs,
    )  # fmt: skip
    return {"critic_updates": critic_updates, "arms": run_all(arms(cfg, base))}


def write_picture(record: dict[str, Any], out: Path) -> None:
    """Write the picture to `out` and print its place, or why there is none."""
    try:
        out.write_text(svg(draw, record["arms"], record["critic_updates"]))
        echo_err(f"picture: {out}")
    except (UserError, OSError) as error:
        echo_err(f"no picture: {error}")


def run_all(todo: list[Arm]) -> dict[str, list[Row]]:
    """Run the arms in as many processes as there are cores, each with one thread."""
    workers = min(len(todo), len(os.sched_getaffinity(0)))
    done: dict[str, list[Row]] = {}
    context = multiprocessing.get_context("spawn")
    display = Display(Activity("arms", 0, len(todo)))
    with display, ProcessPoolExecutor(workers, context) as pool:
        longest_first = sorted(todo, key=lambda arm: -arm.policy_updates)
        running = {pool.submit(run_arm, arm): arm.name for arm in longest_first}
        for future in as_completed(running):
            try:
                done[running[future]] = future.result()
            except BaseException:
                pool.shutdown(cancel_futures=True)
                raise
            display.activity.advance(len(done), len(todo))
            display.print(f"{running[future]}: done, {len(done)} of {len(todo)} arms")
    return {arm.name: done[arm.name] for arm in todo}


def lines(record: dict[str, Any]) -> list[str]:
    """Return the table, and what a healthy figure is."""
    from agentrl_cli.report.summary import table

    found: dict[str, list[Row]] = record["arms"]
    first = next(iter(found.values()))[0]
    aucs = auc_keys(first)
    of_states = "r2" in first
    columns = STATE_COLUMNS if of_states else ACTION_COLUMNS
    cells = [["arm", *(f"AUC, {key[4:]} left" for key in aucs), *columns.values(), "success"]]
    for name, rows in found.items():
        critic = rows_of_critic(rows, record["critic_updates"])[-1]
        shown = [f"{critic[k]:.2f}" if k in critic else "–" for k in (*aucs, *columns)]
        success = f"{100 * rows[0]['success']:.0f} -> {100 * rows[-1]['success']:.0f} %"
        if rows[-1]["update"] <= record["critic_updates"]:
            success = "–"  # the policy did not train
        cells.append([name, *shown, success])
    if len(found) == 1:  # it learns from demonstrations
        return [*table(cells), HEALTHY_REWARDS]
    return [*table(cells), HEALTHY_STATES if of_states else HEALTHY]


def picture(record: dict[str, Any]) -> Figure:
    """Return the picture in the style of reports. Raises UserError without matplotlib."""
    with style():
        return draw(record["arms"], record["critic_updates"])


def draw(found: dict[str, list[Row]], critic_updates: int) -> Figure:
    """Return the picture: the ranking of actions by arm, and the success of the policy."""
    from matplotlib.figure import Figure

    from agentrl_cli.report.figures import COLOURS

    figure = Figure(figsize=(2.3 * len(found) + 2.3, 2.5), layout="constrained")
    *panels, last = figure.subplots(1, len(found) + 1, sharey=True)
    for panel, (name, rows) in zip(panels, found.items(), strict=True):
        learned = rows_of_critic(rows, critic_updates)
        updates = [row["update"] for row in learned]
        for colour, key in zip(COLOURS, auc_keys(rows[0]), strict=False):
            label = f"{key.removeprefix('auc_')} turns left"
            # without clearly different actions there is nothing to rank
            heights = [row.get(key, math.nan) for row in learned]
            panel.plot(updates, heights, color=colour, label=label)
        panel.set(title=name, ylim=(-0.03, 1.03), xlabel="update")
    panels[0].set_ylabel("AUC of actions within a state")
    panels[0].legend()
    for colour, (name, rows) in zip(COLOURS, found.items(), strict=False):
        updates = [row["update"] for row in rows]
        last.plot(updates, [row["success"] for row in rows], color=colour, label=name)
    last.set(title="success of the policy", xlabel="update")
    last.legend()
    return figure
