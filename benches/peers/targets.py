"""What fanlog sets out to reach, each as a ratio of figures that were measured in the same round."""
import statistics
from dataclasses import dataclass
from typing import Callable


@dataclass
class Target:
    """One line: what is asked of the figure that a round gives."""

    workload: str
    text: str
    read: Callable
    at_least: float | None = None
    at_most: float | None = None
    durability: str | None = None
    digits: int = 2


def evaluate(target, found):
    figures = found[target.durability] if target.durability else found
    values = []
    for figure in figures:
        try:
            value = target.read(figure)
        except (KeyError, TypeError, IndexError, ValueError, ZeroDivisionError):
            value = None
        if value is not None:
            values.append(value)
    asked = f"at least {target.at_least:g}" if target.at_least is not None else f"at most {target.at_most:g}"
    if not values:
        return f"| {target.text} | {asked} | not measured | |"
    middle = statistics.median(values)
    is_met = middle >= target.at_least if target.at_least is not None else middle <= target.at_most
    shown = f"{middle:,.{target.digits}f} ({min(values):,.{target.digits}f} to {max(values):,.{target.digits}f})"
    return f"| {target.text} | {asked} | {shown} | {'yes' if is_met else '**no**'} |"


def rate(figure, name):
    return figure["results"][name]["messages_per_second"]


def best_peer(figure):
    """The fastest of the servers that Debian and PyPI have."""
    return max(rate(figure, name) for name in figure["results"] if not name.startswith(("fanlog", "Queen")))


def ours(figure):
    return max(rate(figure, name) for name in figure["results"] if name.startswith("fanlog"))


def queen(figure):
    return max(rate(figure, name) for name in figure["results"] if name.startswith("Queen"))


def zstd(figure, cores, what):
    return figure["limits"][f"zstd_{cores}"][f"{what}_messages_per_second"]


def sum_of(machine, percentile):
    """Microseconds of a sync and an echo."""
    return machine["sync_us"][percentile] + machine["echo_us"][percentile]


def push_targets():
    for size, workload in ((100, "push 100 B, batch 100, 16 connections"), (256, "push 256 B, batch 100, 16 connections")):
        what = f"durable push, {size} B, batch 100, 16 connections"
        yield Target(workload, f"{what}: to the best packaged peer", lambda f: ours(f) / best_peer(f), 3, durability="sync")
        yield Target(workload, f"{what}: to Queen on PostgreSQL", lambda f: ours(f) / queen(f), 20, durability="sync")
        if size == 100:
            yield Target(workload, f"{what}: to 344,000/s quoted of Apache Iggy with fsync", lambda f: ours(f) / 344_000, 2,
                         durability="sync")
            yield Target(workload, "`os` push, 100 B, batch 100, 16 connections, no compression: to 6.1 million/s quoted of Apache Iggy",
                         lambda f: rate(f, "fanlog os") / 6_100_000, 1, durability="default")
    for batch, iggy_synced, iggy in (("100", 260_000, 870_000), ("1,000", 609_000, 1_800_000)):
        workload = f"push 1 KiB, batch {batch}, 8 connections"
        what = f"durable push, 1 KiB, batch {batch}, 8 connections"
        yield Target(workload, f"{what}, no compression: to the best packaged peer", lambda f: rate(f, "fanlog sync") / best_peer(f), 3,
                     durability="sync")
        yield Target(workload, f"{what}, no compression: to {iggy_synced:,}/s quoted of Apache Iggy with fsync",
                     lambda f, quoted=iggy_synced: rate(f, "fanlog sync") / quoted, 1.5, durability="sync")
        yield Target(workload, f"{what}, zstd: to zstd alone on all cores",
                     lambda f: rate(f, "fanlog sync, zstd") / zstd(f, "all_cores", "compress"), 0.7, durability="sync")
        what = f"`os` push, 1 KiB, batch {batch}, 8 connections"
        yield Target(workload, f"{what}, zstd: to the best packaged peer in its default",
                     lambda f: rate(f, "fanlog os, zstd") / best_peer(f), 2, durability="default")
        yield Target(workload, f"{what}, zstd: to zstd alone on all cores",
                     lambda f: rate(f, "fanlog os, zstd") / zstd(f, "all_cores", "compress"), 0.7, durability="default")
        yield Target(workload, f"{what}, no compression: to {iggy:,}/s quoted of Apache Iggy",
                     lambda f, quoted=iggy: rate(f, "fanlog os") / quoted, 1, durability="default")
    workload = "push 100 B, single messages, 64 connections"
    yield Target(workload, "durable push, single messages, 64 connections: to the best packaged peer",
                 lambda f: ours(f) / best_peer(f), 1.2, durability="sync")
    yield Target(workload, "durable push, single messages, 64 connections: to bare echoes",
                 lambda f: ours(f) / f["limits"]["echoes_per_second"], 0.75, durability="sync")
    workload = "push 100 B, single messages, 1 connection"
    for percentile, most in (("p50", 1.3), ("p99", 1.5)):
        yield Target(workload, f"durable push, single messages, 1 connection: {percentile} to fdatasync and echo",
                     lambda f, at=percentile: f["results"]["fanlog sync"]["latency_us"][at] / sum_of(f["limits"], at), at_most=most,
                     durability="sync")


PLAIN, ZSTD, RABBIT = "fanlog os", "fanlog os, zstd", "RabbitMQ stream"
POP, FOUR, DECODED, FANOUT = "pop, 1 connection", "pop, 4 connections", "pop-decoded, 1 connection", "fanout, 16 connections"


def best_decoded(figure):
    """Peers whose clients get messages one by one."""
    names = [name for name in figure["results"] if not name.startswith(("fanlog", "RabbitMQ"))]
    return max(rate(figure, name) for name in names)


def backlog_targets():
    payload = 1024
    bytes_of = lambda f, name: rate(f, name) * payload
    cpu = lambda f, name: f["results"][name]["server_cpu_seconds"] / (f["results"][name]["messages"] * payload / 1e9)
    target = lambda text, read, *limit, **more: Target("backlog 1 KiB", text, read, *limit, **more)
    yield target("pop, stored batches, no compression, bytes: to sendfile",
                 lambda f: bytes_of(f, f"{PLAIN}: {POP}") / f["limits"]["sendfile_bytes_per_second"], 0.8)
    yield target("pop, stored batches, zstd, messages: to RabbitMQ stream chunks",
                 lambda f: rate(f, f"{ZSTD}: {POP}") / rate(f, f"{RABBIT}: {POP}"), 1.3)
    yield target("pop, stored batches, no compression, messages: to RabbitMQ stream chunks",
                 lambda f: rate(f, f"{PLAIN}: {POP}") / rate(f, f"{RABBIT}: {POP}"), 1.3)
    yield target("pop, decoded, zstd: to zstd decompression alone on one core",
                 lambda f: rate(f, f"{ZSTD}: {DECODED}") / zstd(f, "one_core", "decompress"), 0.8)
    yield target("pop, no compression, 1 consumer, bytes: to 1.68 GB/s quoted of Apache Iggy",
                 lambda f: bytes_of(f, f"{PLAIN}: {POP}") / 1.68e9, 1.3)
    yield target("pop, no compression, 4 consumers, bytes: to 2.46 GB/s quoted of Apache Iggy with eight",
                 lambda f: bytes_of(f, f"{PLAIN}: {FOUR}") / 2.46e9, 1.3)
    yield target("pop, decoded, no compression: to the best packaged peer", lambda f: rate(f, f"{PLAIN}: {DECODED}") / best_decoded(f), 2)
    yield target("fan-out to 16, no compression, bytes: to RabbitMQ streams",
                 lambda f: rate(f, f"{PLAIN}: {FANOUT}") / rate(f, f"{RABBIT}: {FANOUT}"), 1.3)
    yield target("fan-out to 16, no compression, bytes: to 2.7 GB/s quoted of Apache Iggy",
                 lambda f: bytes_of(f, f"{PLAIN}: {FANOUT}") / 2.7e9, 1.3)
    yield target("fan-out to 16, zstd, messages: to RabbitMQ streams",
                 lambda f: rate(f, f"{ZSTD}: {FANOUT}") / rate(f, f"{RABBIT}: {FANOUT}"), 4)
    yield target("fan-out to 16, no compression: server CPU seconds for each GB", lambda f: cpu(f, f"{PLAIN}: {FANOUT}"), at_most=0.3)


def own_targets():
    yield Target("acknowledgements", "acknowledgement, one message each, durable, 64 consumers: to single pushes",
                 lambda f: f["acks"] / f["pushes"], 0.8)
    yield Target("end to end", "end to end at 1,000/s, durable: p99 to 2 x (fdatasync p99 + echo p99) + 1 ms",
                 lambda f: f["latency_us"]["p99"] / (2 * sum_of(f["limits"], "p99") + 1000), at_most=1)
    yield Target("processor time of a delivery", "server CPU for each delivered message of 256 B, whole batches, microseconds",
                 lambda f: f["cpu_us"], at_most=0.3, digits=3)
    for size in (256, 1024):
        yield Target("bytes on disk", f"bytes on disk, {size} B, batch 100: to zstd alone",
                     lambda f, size=size: f[f"{size} B, 0 groups"] / f[f"{size} B, zstd"], at_most=1.05, digits=3)
        yield Target("bytes on disk", f"bytes on disk, {size} B: with 16 groups to without",
                     lambda f, size=size: f[f"{size} B, 16 groups"] / f[f"{size} B, 0 groups"], at_most=1.001, digits=4)
    for name, most in (("idle", 10), ("backlog", 50)):
        yield Target("memory", f"memory without mapped pages, {name}, MB", lambda f, name=name: f[name]["RssAnon"] / 1e6, at_most=most,
                     digits=1)
    yield Target("restart with 10 GB", "ready after SIGKILL with a log of 10 GB, seconds", lambda f: f["ready"], at_most=1)
    for work in ("push", "pop"):
        yield Target("restart with 10 GB", f"{work}, log of 10 GB: server CPU for each message to that of a small log",
                     lambda f, w=work: f["costs"][f"{w}, 10 GB"]["cpu_us"] / f["costs"][f"{w}, 1 MB"]["cpu_us"], at_most=1.1)
        for many, one in (("1,000 partitions", "1 partition"), ("64 groups", "1 group")):
            yield Target("cost growth", f"{work}, {many}: server CPU for each message to {one}",
                         lambda f, w=work, many=many, one=one: f[f"{w}, {many}"]["cpu_us"] / f[f"{w}, {one}"]["cpu_us"], at_most=1.1)


TARGETS = [*push_targets(), *backlog_targets(), *own_targets()]
