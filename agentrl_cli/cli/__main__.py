"""`python -m agentrl_cli.cli`: the same as `agentrl`."""

from agentrl_cli.cli.main import app

if __name__ == "__main__":  # and not in a process that is forked from it
    app()
