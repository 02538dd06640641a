"""What the verbs' help shows as examples."""


def _examples(*commands: str) -> str:
    return "\b\nExamples:\n" + "".join(f"  agentrl {command}\n" for command in commands)


ALL = _examples("train algo=nlac env=twentyq", "show last")
TRAIN = _examples(
    "train algo=grpo env=twentyq steps=50 seed=1",
    "train recipe=twentyq algo=nlac ablation=frozen_critic",
    "train --config runs/2026-11-21_twentyq-nlac-tiny_s1_k7f2/config.yaml",
)
RESUME = _examples("resume last", "resume runs/grid/seed-0 steps=48")
EVAL = _examples(
    "eval last env=arithmetic eval.episodes_per_task=4",
    "eval model=hf model.path=FOLDER env=twentyq --json",
)
PLAY = _examples("play env=twentyq", "play --run last --task test-1")
EXPORT = _examples("export last exported", "export last --inspect logs")
REPRODUCE = _examples("reproduce twentyq_rft --seed 0", "reproduce all --smoke")
SWEEP = _examples(
    "sweep algo=nlac,self_ac,grpo env=twentyq seed=0,1,2",
    "sweep algo=grpo algo.clip_eps=0.1,0.2 'seed=range(3)' --jobs 2",
    "sweep algo=grpo seed=0,1,2 hydra/launcher=submitit_slurm hydra.launcher.timeout_min=120",
)
SHOW = _examples(
    "show last --lost",
    "show runs/grid/seed-0 --episode twentyq-small-cat-e02",
    "show last --critique",
)
REPORT = _examples(
    "report runs/2026-11-21_sweep --against grpo",
    "report grpo-s0 grpo-s1 nlac-s0 nlac-s1 --threshold 0.4",
    "report runs/grid --markdown",
    "report runs/grid --zip",
)
CALIBRATE = _examples(
    "calibrate env=twentyq_full env.llm.model=NAME env.llm.base_url=http://127.0.0.1:8000/v1",
    "calibrate env=twentyq env.llm.model=NAME n=2 --json",
)
NEW = _examples("new env guess_it", "new algo my_method")
SERVE = _examples(
    "serve model=hf model.path=Qwen/Qwen2.5-7B-Instruct algo=nlac",
    "serve recipe=paper_twentyq algo=nlac hardware.generator.server.gpus=[1,2] --print",
)
LS = _examples("ls", "ls runs/grid --json")
LIST = _examples("list algo", "list algo grpo", "list env --config-dir my_groups")
CONFIG = _examples("config algo=grpo env=arithmetic", "config recipe=twentyq ablation=k1 --json")
CHECK = _examples("check env=mine", "check env=twentyq env.max_turns=8 --config-dir my_groups")
GRADE = _examples(
    "grade 1/2 'so it is \\boxed{0.5}'",
    "grade 12 '\\boxed{13}' --json",
    "grade 1/2 'The final answer is 50 percent.' --extract last_math",
)
