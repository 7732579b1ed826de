"""The servers, and what a new release of them needs."""

from turngate.cli.lazy import CommandGroup

app = CommandGroup(__name__, panel="Serve")
app.add("up", "up:up", "Run everything on this machine: Temporal, the store, a worker, the API and the pages.")
app.add(
    "dev",
    "dev:dev",
    "Run everything, as `turngate up` does, and load the app again whenever one of its files changes.",
)
app.add(
    "status",
    "status:status",
    "Say what is wrong: workers, builds, runs that wait, Temporal, the store, notifications, disk and clocks.",
)
app.add("worker", "worker:worker", "Run a worker, which calls models and runs tools. Start as many as you like.")
app.add("api", "api:api", "Serve the API and the operators' pages, without a worker.")
app.add("temporal", "temporal:temporal", "Run the embedded Temporal alone, for a worker and an API on this machine.")
app.add(
    "search-attributes",
    "search_attributes:attributes",
    "Say which search attributes Temporal's namespace lacks, or add them.",
)
app.add("migrate", "migrate:migrate", "Bring the database's schema to this version, before new workers and APIs start.")
app.add(
    "replay-check",
    "replay_check:replay_check",
    "Check before a deploy that this release can continue the runs there are.",
)
app.add(
    "codec-server",
    "codec_server:codec_server",
    "Decrypt payloads for Temporal's own pages and command line, if stored content is encrypted.",
)
app.add("builds", "builds:builds", "List the workers' builds and their open runs, or choose the build for new runs.")
