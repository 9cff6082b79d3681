"""What is measured. A workload makes a list of rounds, and a round is a dictionary of figures that belong together."""
import contextlib
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time

from servers import FANLOG, PATIENCE, TARGET, Fanlog, cpu_seconds, contenders, memory

# Messages that wait for the readers, 1 KiB each.
BACKLOG = 1_000_000


def say(text):
    print(text, file=sys.stderr, flush=True)


def limits(write_bytes, connections, size, batch):
    with tempfile.TemporaryDirectory(prefix="fanlog-peers-") as directory:
        command = [os.path.join(TARGET, "examples", "limits"), directory]
        command += [str(number) for number in (max(4096, write_bytes), connections, size, batch)]
        return json.loads(subprocess.run(command, check=True, capture_output=True, timeout=PATIENCE).stdout)


def bench(*words):
    """`fanlog bench` with a server of its own, which checks every message."""
    command = [FANLOG, "bench", *[str(word) for word in words], "--serve", "-o", "json"]
    done = subprocess.run(command, capture_output=True, timeout=PATIENCE)
    if done.returncode != 0:
        raise RuntimeError(f"{' '.join(command)}: {done.stderr.decode(errors='replace')[-500:]} {done.stdout.decode()[-500:]}")
    return json.loads(done.stdout)


def span(values, digits=0):
    return f"{statistics.median(values):,.{digits}f} ({min(values):,.{digits}f} to {max(values):,.{digits}f})"


@contextlib.contextmanager
def started(makers):
    """All servers at once; those that are not driven have nothing to do. One that does not start is said and left out."""
    with contextlib.ExitStack() as stack:
        servers = {}
        for name, make in makers.items():
            try:
                servers[name] = stack.enter_context(make())
            except (RuntimeError, OSError, subprocess.SubprocessError) as error:
                say(f"{name}: {error}")
        yield servers


class Drives:
    """Drives servers for about so many seconds each time, after one run that tells how many messages that is."""

    def __init__(self, seconds):
        self.seconds = seconds
        self.counts = {}

    def drive(self, name, server, work, size, batch, connections, count_max=None):
        whole = batch * connections
        key = (name, work, connections)
        count_max = count_max or sys.maxsize
        try:
            if key not in self.counts:
                trial = min(max(whole * 10, 2000), count_max)
                rate = server.drive(work, size, batch, connections, trial)["messages_per_second"]
                # A trial is short, and the next may be faster.
                trial = min(max(int(rate * self.seconds / 4) // whole, 4) * whole, count_max)
                rate = server.drive(work, size, batch, connections, trial)["messages_per_second"]
                self.counts[key] = min(max(int(rate * self.seconds) // whole, 4) * whole, count_max)
            # What the run before left to be written is not to be paid by this one.
            os.sync()
            result = server.drive(work, size, batch, connections, self.counts[key])
        except (RuntimeError, subprocess.SubprocessError) as error:
            say(f"{name}: {error}")
            return None
        say(f"{name}, {work}, {connections} connections: {result['messages_per_second']:,.0f}/s")
        return result


class Push:
    """A push is acknowledged before the next one of its connection."""

    def __init__(self, name, size, batch, connections, durabilities=("sync", "default")):
        self.name, self.size, self.batch, self.connections, self.durabilities = name, size, batch, connections, durabilities

    def measure(self, rounds, seconds):
        found = {}
        for durability in self.durabilities:
            is_synced = durability == "sync"
            drives = Drives(seconds)
            found[durability] = figures = []
            with started(contenders(is_synced)) as servers:
                for number in range(rounds):
                    say(f"round {number + 1}, {self.name}, {durability}")
                    results = {}
                    for name, server in servers.items():
                        result = drives.drive(name, server, "push", self.size, self.batch, self.connections)
                        if result:
                            results[name] = result
                    machine = limits(self.size * self.batch, self.connections, self.size, self.batch)
                    figures.append({"results": results, "limits": machine})
            checked = bench("push", "--size", self.size, "--batch", self.batch, "--connections", self.connections, "--in-flight", 1,
                            "--partitions", self.connections, "--durability", "sync" if is_synced else "os",
                            "--count", self.batch * self.connections * 50)
            say(f"fanlog bench checked {checked['checks']['checked']} messages")
        return found

    def show(self, found):
        for durability, figures in found.items():
            what = "a sync before each answer" if durability == "sync" else "default durability, no sync before the answer"
            show_rates(f"{self.name}, {what}", figures)


def show_rates(title, figures):
    print(f"\n### {title}\n\n| server | messages/s: median (lowest to highest) | fanlog is so many times as fast |\n|---|---|---|")
    names = list(dict.fromkeys(name for figure in figures for name in figure["results"]))
    rate = lambda figure, name: figure["results"][name]["messages_per_second"]
    for name in names:
        both = [figure for figure in figures if name in figure["results"]]
        ratios = [rate(figure, names[0]) / rate(figure, name) for figure in both if names[0] in figure["results"]]
        ratio = "" if name.startswith("fanlog") or not ratios else span(ratios, 2)
        print(f"| {name} | {span([rate(figure, name) for figure in both])} | {ratio} |")
    print(f"\nLimits of the machine, median of the rounds: {show_limits([figure['limits'] for figure in figures])}", flush=True)


def show_limits(machine):
    middle = lambda read: statistics.median(read(limits) for limits in machine)
    parts = [
        f"{middle(lambda of: of['syncs_per_second']):,.0f} syncs/s of {machine[0]['sync_bytes']:,} bytes "
        f"(p50 {middle(lambda of: of['sync_us']['p50']):,.0f} µs, p99 {middle(lambda of: of['sync_us']['p99']):,.0f} µs)",
        f"{middle(lambda of: of['write_bytes_per_second']) / 1e9:.2f} GB/s written and synced at the end",
        f"{middle(lambda of: of['echoes_per_second']):,.0f} echoes/s over {machine[0]['connections']} connections "
        f"(p50 {middle(lambda of: of['echo_us']['p50']):,.0f} µs, p99 {middle(lambda of: of['echo_us']['p99']):,.0f} µs)",
        f"{middle(lambda of: of['sendfile_bytes_per_second']) / 1e9:.2f} GB/s by sendfile",
    ]
    if machine[0]["zstd_one_core"]:
        for cores in ("one_core", "all_cores"):
            of = lambda limits, what: limits[f"zstd_{cores}"][f"{what}_messages_per_second"]
            compressed, decompressed = (middle(lambda limits: of(limits, what)) for what in ("compress", "decompress"))
            parts.append(f"zstd on {cores.replace('_', ' ')}: {compressed:,.0f} messages/s compressed, {decompressed:,.0f} decompressed")
    return "; ".join(parts)


class Backlog:
    """One group, and then many, read what was pushed before. Stored batches and chunks are counted, not opened, unless it says so."""

    name = "backlog 1 KiB"
    size, groups = 1024, 16

    def measure(self, rounds, seconds):
        figures = []
        with started(contenders(False)) as servers:
            servers = {name: server for name, server in servers.items() if not name.startswith("Queen")}
            for name, server in list(servers.items()):
                say(f"{name}: {BACKLOG:,} messages")
                try:
                    server.drive("push", self.size, 100, 4, BACKLOG)
                    server.settle()
                except (RuntimeError, subprocess.SubprocessError) as error:
                    say(f"{name}: {error}")
                    del servers[name]
            os.sync()
            drives = Drives(seconds)
            for number in range(rounds):
                say(f"round {number + 1}, {self.name}")
                results = {}
                for name, server in servers.items():
                    kinds = [("pop", 1)]
                    if server.has_groups:
                        kinds.append(("pop", 4))
                    if isinstance(server, Fanlog):
                        kinds.append(("pop-decoded", 1))
                    if isinstance(server, Fanlog) or not server.has_groups:
                        kinds.append(("fanout", self.groups))
                    for work, connections in kinds:
                        count_max = BACKLOG * (self.groups if work == "fanout" else 1)
                        result = drives.drive(name, server, work, self.size, 1000, connections, count_max)
                        if result:
                            results[f"{name}: {work}, {connections} connection{'s' if connections > 1 else ''}"] = result
                figures.append({"results": results, "limits": limits(4096, 1, self.size, 100)})
        figures[0]["checked"] = [
            bench("pop", "--size", self.size, "--batch", 100, "--count", 500_000, "--compression", compression, *more)
            for compression in ("none", "zstd:1") for more in ((), ("--raw",))
        ]
        figures[0]["checked"].append(bench("fanout", "--size", self.size, "--batch", 100, "--count", 200_000, "--raw"))
        return figures

    def show(self, figures):
        show_rates("Reading a backlog of 1 KiB messages, default durability, 1,000 messages in an answer", figures)


class Own:
    """What is measured of fanlog alone and beside the limits: figures of one round come from a function."""

    def __init__(self, name, make):
        self.name, self.make = name, make

    def measure(self, rounds, seconds):
        figures = []
        for number in range(rounds):
            try:
                figures.append(self.make(seconds))
            except (RuntimeError, subprocess.SubprocessError) as error:
                say(f"round {number + 1}, {self.name}: {error}")
                continue
            say(f"round {number + 1}, {self.name}: {json.dumps(figures[-1])[:400]}")
        return figures

    def show(self, figures):
        pass


def acknowledgements(seconds):
    """64 consumers acknowledge what each holds of a partition of its own, and 64 producers push, one message in flight each."""
    connections = 64
    count = int(400 * max(seconds, 1)) * connections
    with Fanlog(True, "zstd:1") as server:
        server.drive("push", 100, 100, connections, -(-count // (100 * connections)) * 100 * connections)
        pushes = server.drive("push", 100, 1, connections, count)
        acks = server.drive("ack", 100, 1, connections, count)
        return {"acks": acks["messages_per_second"], "pushes": pushes["messages_per_second"]}


def end_to_end(seconds):
    run = bench("e2e", "--size", 256, "--batch", 1, "--rate", 1000, "--duration", f"{max(seconds, 3):g}s", "--durability", "sync")
    return {"latency_us": run["latency_us"], "limits": limits(4096, 1, 256, 1)}


def delivery_cpu(seconds):
    run = bench("pop", "--size", 256, "--batch", 100, "--count", 2_000_000, "--raw", "--durability", "os")
    return {"cpu_us": run["server"]["cpu_us_per_message"], "messages_per_second": run["messages_per_second"]}


def disk_bytes(seconds):
    found = {}
    for size in (256, 1024):
        for groups in (0, 16):
            run = bench("push", "--size", size, "--batch", 100, "--count", 200_000, "--groups", groups)
            found[f"{size} B, {groups} groups"] = run["disk"]["bytes_per_message"]
        found[f"{size} B, zstd"] = run["zstd_alone"]["bytes_per_message"]
    return found


def held_memory(seconds):
    with Fanlog(False, "none") as server:
        idle = memory(server.process.pid)
        for _ in range(4):
            server.drive("push", 1024, 100, 4, BACKLOG // 4)
        time.sleep(1)
        full = memory(server.process.pid)
        server.drive("pop", 1024, 1000, 1, BACKLOG)
        return {"idle": idle, "backlog": full, "backlog_read": memory(server.process.pid)}


class Restart:
    """Pushes a log of ten gigabytes, and kills the server again and again."""

    name = "restart with 10 GB"
    bytes = 10_000_000_000

    def measure(self, rounds, seconds):
        figures = []
        with Fanlog(False, "none") as large:
            while large.stats()["log_bytes"] < self.bytes:
                large.drive("push", 1024, 100, 4, BACKLOG)
            for number in range(rounds):
                os.sync()
                large.drive("push", 1024, 100, 4, 100_000)
                os.killpg(large.process.pid, signal.SIGKILL)
                large.process.wait()
                start = time.monotonic()
                large.start()
                large.stats()
                ready = time.monotonic() - start
                figure = {"ready": ready, "memory": memory(large.process.pid), "log_bytes": large.stats()["log_bytes"], "costs": {}}
                for work in ("push", "pop"):
                    figure["costs"][f"{work}, 10 GB"] = self.cost(large, work)
                    with Fanlog(False, "none") as small:
                        small.drive("push", 1024, 100, 4, 1200)
                        if work == "pop":
                            small.drive("push", 1024, 100, 4, 200_000)
                        figure["costs"][f"{work}, 1 MB"] = self.cost(small, work)
                figures.append(figure)
                say(f"round {number + 1}, {self.name}: {json.dumps(figure)}")
        return figures

    def cost(self, server, work):
        """Microseconds of the server's processor time for each message, over what is in the log already."""
        size, batch, count = 1024, 100, 200_000
        os.sync()
        if work == "push":
            result = server.drive("push", size, batch, 4, count)
        else:
            result = server.drive("pop", size, 1000, 1, min(count, server.stats()["messages"] // 1000 * 1000))
        return {"cpu_us": result["server_cpu_seconds"] * 1e6 / result["messages"], "rate": result["messages_per_second"]}

    def show(self, figures):
        pass


def cost_growth(seconds):
    found = {}
    common = ("--size", 256, "--batch", 100, "--durability", "os")
    for name, more in {
        "1 partition": ("--partitions", 1), "1,000 partitions": ("--partitions", 1000),
        "1 group": ("--partitions", 16, "--groups", 1), "64 groups": ("--partitions", 16, "--groups", 64),
    }.items():
        for work, rest in (("push", ("--count", 3_000_000, "--connections", 4)),
                           ("pop", ("--count", 2_000_000, "--connections", 1, "--pop-partitions", 64, "--raw"))):
            run = bench(work, *common, *more, *rest)
            found[f"{work}, {name}"] = {"cpu_us": run["server"]["cpu_us_per_message"], "rate": run["messages_per_second"]}
    return found


WORKLOADS = [
    Push("push 100 B, batch 100, 16 connections", 100, 100, 16),
    Push("push 256 B, batch 100, 16 connections", 256, 100, 16, ("sync",)),
    Push("push 1 KiB, batch 100, 8 connections", 1024, 100, 8),
    Push("push 1 KiB, batch 1,000, 8 connections", 1024, 1000, 8),
    Push("push 100 B, single messages, 64 connections", 100, 1, 64, ("sync",)),
    Push("push 100 B, single messages, 1 connection", 100, 1, 1, ("sync",)),
    Backlog(),
    Own("acknowledgements", acknowledgements),
    Own("end to end", end_to_end),
    Own("processor time of a delivery", delivery_cpu),
    Own("bytes on disk", disk_bytes),
    Own("memory", held_memory),
    Restart(),
    Own("cost growth", cost_growth),
]
