"""``treadle demo``."""

import asyncio
import os
import time
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

import msgspec
import typer
from rich.console import Console

from shared.runtime.settings import TreadleSettings, load
from shared.runtime.stack_state import ServiceState, State
from treadle.cli.demo_agent import VISIBLE, find_mini, run_agent, visible_paths
from treadle.cli.demo_agent import show as show_agent
from treadle.cli.demo_gpu import demo_gpu
from treadle.cli.grade import DISAGREES
from treadle.cli.proxy import BATCH_CANCELLED, WRONG, CommandFailed, check_proxy, exit_status, find_proxy
from treadle.cli.up import Home
from treadle.cli.workers import find_router
from treadle.client.answers import NodeView
from treadle.client.asynchronous import AsyncTreadle
from treadle.client.progress import ProgressBar
from treadle.grading.demonstration import Demonstration, DemoPlan, demonstrate
from treadle.grading.humaneval import PackageMissing
from treadle.grading.render import counted, show
from treadle.stack.operate import start_detached
from treadle.stack.services import PROXY

PROBLEMS, GROUP_SIZE, GENERATIONS = 164, 8, 2000
QUICK_PROBLEMS, QUICK_GENERATIONS = 12, 40


def register(app: typer.Typer) -> None:
    app.command("demo")(demo)


def demo(
    group_size: Annotated[
        int, typer.Option(min=1, max=64, help="Programs a problem: 1 reference + mutants.")
    ] = GROUP_SIZE,
    generations: Annotated[int, typer.Option(min=0, help="Recorded generations to grade as well.")] = GENERATIONS,
    timeout: Annotated[float, typer.Option(min=0.1, max=60, help="Seconds a program may run.")] = 3.0,
    seed: Annotated[int, typer.Option(help="Seed of mutants and sample.")] = 1,
    quick: Annotated[bool, typer.Option("--quick", help=f"{QUICK_PROBLEMS} problems and few generations.")] = False,
    agent: Annotated[
        bool, typer.Option("--agent", help="Let mini-swe-agent repair a function in a sandbox instead.")
    ] = False,
    mini: Annotated[
        Path | None, typer.Option(help="Program of mini-swe-agent, with --agent. [default: the one in PATH]")
    ] = None,
    engine: Annotated[
        str | None, typer.Option(metavar="URL", help="Engine for --agent. [default: a scripted model]")
    ] = None,
    model: Annotated[str | None, typer.Option(help="Model of that engine.")] = None,
    gpu: Annotated[
        bool, typer.Option("--gpu", help="Let three real models on the CPU share memory for two, under kills, instead.")
    ] = False,
    minutes: Annotated[float, typer.Option(min=0.1, max=1440, help="Duration of --gpu.")] = 1.0,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object and nothing else.")] = False,
    url: Annotated[str | None, typer.Option(help="The proxy. [default: the stack that is up, or a new one]")] = None,
    home: Home = None,
) -> None:
    """Grade HumanEval's 164 reference solutions and seeded mutants of them on a stack of your own.

    Starts a stack if none is up and leaves it running, so that the next demo starts at once. If the data folder
    (TREADLE_DATA, by default ../shared/data) has recorded generations of models, the demo grades a sample of them too
    and compares the recorded verdicts.

    With --agent: an unmodified agent in a sandbox without network calls its model through a loopback address, its
    repair is graded in a fresh sandbox, and its tokens are read as training rows with the reward. With --url, set
    TRAJECTORY_ROUTER_URL too, and TRAJECTORY_ROUTER_OPERATOR_KEY if that router has a key.

    With --gpu: a judge, a sentence encoder and a reward model share a described device with room for two. Engines are
    killed at random, and each answer is compared with that of the model alone. It starts a stack of its own.

    Exit status: 0 success; 1 a reference does not pass, a verdict differs, the agent fails, an answer is wrong, or
    memory is lacking; 2 a part is missing, or --gpu on a machine with GPUs; 3 no stack answers.
    """
    console = Console(stderr=as_json)
    if gpu:
        raise typer.Exit(demo_gpu(minutes, seed, as_json, console))
    if agent:
        raise typer.Exit(_demo_agent(url, home, mini, engine, model, as_json, console))
    with exit_status("demo", BATCH_CANCELLED):
        plan = DemoPlan(
            problems=QUICK_PROBLEMS if quick else PROBLEMS,
            group_size=group_size,
            generations=min(generations, QUICK_GENERATIONS) if quick else generations,
            timeout_s=timeout,
            seed=seed,
            key=uuid.uuid4().hex[:12],
            data=load(TreadleSettings).data,
        )
        url = _proxy_url(url, home, console)
        found = asyncio.run(_run(url, plan, console))
    if as_json:
        typer.echo(msgspec.json.encode(found).decode())
    else:
        _show(found, plan, console)
        console.print(
            f"\nThe stack is still up: {url}. Its batches: {url}/v1/batches. Stop it: treadle down", soft_wrap=True
        )
    raise typer.Exit(0 if found.succeeded else DISAGREES)


def _demo_agent(
    url: str | None,
    home: Path | None,
    mini: Path | None,
    engine: str | None,
    model: str | None,
    as_json: bool,
    console: Console,
) -> int:
    """Run the demo of an agent, and return its exit status."""
    with exit_status("demo --agent", "The trajectory was closed."):
        program = find_mini(mini)
        os.environ[VISIBLE] = visible_paths(program)  # for a stack that this command starts
        url = _proxy_url(url, home, console)
        key = os.environ.get("TRAJECTORY_ROUTER_OPERATOR_KEY")
        found = asyncio.run(run_agent(url, find_router(home), key, program, engine, model, console))
    if as_json:
        rows = found.training_rows()
        typer.echo(msgspec.json.encode({**msgspec.to_builtins(found), "reward": found.reward, "rows": rows}).decode())
    else:
        show_agent(found, console)
        console.print(f"\nThe stack is still up: {url}. Stop it: treadle down", soft_wrap=True)
    return 0 if found.succeeded else DISAGREES


def _proxy_url(url: str | None, home: Path | None, console: Console) -> str:
    """Return the proxy's address. Starts a stack if there is none."""
    url = find_proxy(os.environ, url, home)
    if url is not None:
        console.print(f"Using the stack at {url}")
        return url
    if home is not None:
        os.environ["TREADLE_HOME"] = str(home)
    console.print("No stack is up: starting one (the first time also makes its databases)")
    started = time.monotonic()

    def changed(service: ServiceState) -> None:
        if service.state is not State.STARTING:
            console.print(f"  {service.name:<17} {service.state}", highlight=False)

    url = start_detached(os.environ, changed).url(PROXY)
    console.print(f"Up in {time.monotonic() - started:.1f} s at {url}")
    return url


async def _run(url: str, plan: DemoPlan, console: Console) -> Demonstration:
    async with AsyncTreadle(url) as client:
        await check_proxy(client)
        for line in _hosts(await client.nodes()):
            console.print(line, highlight=False)
        try:
            return await demonstrate(client, plan, lambda title, lines: ProgressBar(lines, title, console))
        except PackageMissing as error:
            raise CommandFailed(str(error), WRONG) from error


def _hosts(nodes: list[NodeView]) -> Iterator[str]:
    for node in nodes:
        if node.state == "ready":
            cores, rung = node.capacity.get("cores", 0), node.labels.get("sandbox", "?")
            yield f"Node {node.name}: {cores} cores, sandbox rung {rung}"


def _show(found: Demonstration, plan: DemoPlan, console: Console) -> None:
    mutants = found.mutants
    console.rule("HumanEval: references and mutants")
    show(mutants.report, console)
    if found.generations is not None:
        console.rule("Recorded generations of models")
        show(found.generations, console)
    console.rule("In short")
    for line in _summary(found, plan):
        console.print(line)


def _summary(found: Demonstration, plan: DemoPlan) -> Iterator[str]:
    mutants = found.mutants
    counts = mutants.report.rewards.verdicts
    whole = mutants.references_passed == mutants.problems
    mark = "[green]✓[/]" if whole else "[red]✗[/]"
    yield f"{mark} {mutants.references_passed} of {mutants.problems} reference solutions pass"
    for id_ in mutants.references_not_passed:
        yield f"  [red]does not pass: {id_}[/]"
    caught = mutants.mutants - mutants.survivors
    yield (
        f"[green]✓[/] {caught:,} of {mutants.mutants:,} mutants caught, {mutants.survivors:,} survived their tests; "
        f"{counted(counts['timeout'], 'program')} did not end within {plan.timeout_s:g} s"
    )
    if found.generations is None:
        yield f"- no recorded generations graded: {found.generations_absent}"
    elif (agreement := found.generations.agreement) is not None:
        mark = "[green]✓[/]" if not agreement.disagreements else "[red]✗[/]"
        yield f"{mark} {agreement.agreed:,} of {agreement.compared:,} recorded verdicts of model generations confirmed"
    reports = [report for report in (mutants.report, found.generations) if report is not None]
    programs, seconds = sum(r.rewards.requests for r in reports), sum(r.elapsed_s for r in reports)
    yield f"[green]✓[/] {programs:,} programs in {seconds:.1f} s, each in its own sandbox, each answered once"
