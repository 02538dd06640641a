"""`python -m agentrl_cli.cli`: the same as `agentrl`."""

from agentrl_cli.cli.main import app

app()
