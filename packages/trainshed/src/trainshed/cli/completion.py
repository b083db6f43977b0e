"""`trainshed completion`: prints what makes a shell complete commands, options and their values."""

import click


@click.command(
    epilog='Put this into ~/.bashrc: eval "$(trainshed completion bash)"; for zsh into ~/.zshrc alike; for'
    " fish: trainshed completion fish > ~/.config/fish/completions/trainshed.fish"
)
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
@click.pass_context
def command(context: click.Context, shell: str) -> None:
    """Print what makes a shell complete commands, options and their values."""
    from click.shell_completion import get_completion_class

    complete = get_completion_class(shell)
    assert complete is not None, shell
    root = context.find_root()
    name = root.info_name or "trainshed"
    variable = f"_{name.replace('-', '_').upper()}_COMPLETE"
    click.echo(complete(root.command, {}, name, variable).source())
