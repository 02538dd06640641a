"""What the verbs' help shows as examples."""

ALL = """\b
Examples:
  agentrl train algo=nlac env=twentyq
  agentrl show last
"""
TRAIN = """\b
Examples:
  agentrl train algo=grpo env=twentyq steps=50 seed=1
  agentrl train --config runs/2026-11-21_twentyq-nlac-tiny_s1_k7f2/config.yaml
"""
RESUME = """\b
Examples:
  agentrl resume last
  agentrl resume runs/grid/seed-0 steps=48
"""
EVAL = """\b
Examples:
  agentrl eval last eval.episodes_per_task=4
  agentrl eval model=hf model.path=FOLDER env=twentyq --json
"""
PLAY = """\b
Examples:
  agentrl play env=twentyq
  agentrl play --run last --task test-1
"""
EXPORT = """\b
Examples:
  agentrl export last exported
  agentrl export runs/grid/seed-0 models/best
"""
REPRODUCE = """\b
Examples:
  agentrl reproduce twentyq_rft --seed 0
  agentrl reproduce all --smoke
"""
SWEEP = """\b
Examples:
  agentrl sweep algo=nlac,self_ac,grpo env=twentyq seed=0,1,2
  agentrl sweep algo=grpo algo.clip=0.1,0.2 seed=range(3) --jobs 2
  agentrl sweep algo=grpo seed=0,1,2 hydra/launcher=submitit_slurm hydra.launcher.timeout_min=120
"""
SHOW = """\b
Examples:
  agentrl show last --lost
  agentrl show runs/grid/seed-0 --episode twentyq-small-cat-e02
"""
REPORT = """\b
Examples:
  agentrl report runs/2026-11-21_sweep --against grpo
  agentrl report grpo-s0 grpo-s1 nlac-s0 nlac-s1 --threshold 0.4
  agentrl report runs/grid --markdown
"""
LS = """\b
Examples:
  agentrl ls
  agentrl ls runs/grid --json
"""
LIST = """\b
Examples:
  agentrl list algo
  agentrl list env --config-dir my_groups
"""
GRADE = """\b
Examples:
  agentrl grade 1/2 'so it is \\boxed{0.5}'
  agentrl grade 12 '\\boxed{13}' --json
"""
