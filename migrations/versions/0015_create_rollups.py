"""Create rollups by the minute and the hour, their marks, and give verdicts day partitions as samples have."""

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision = "0015"
down_revision = "0014"
branch_labels = None
depends_on = None

LATENCIES = ("ttft", "itl", "queue_wait", "e2e")
STAGES = ("inference", "prefill", "decode")
LENGTHS = ("prompt_len", "output_len", "step")
INCREMENTS = (
    "arrivals",
    "completed",
    "errors",
    "aborted",
    "prompt_tokens",
    "prompt_tokens_computed",
    "generation_tokens",
    "preemptions",
    "prefix_cache_hits",
    "prefix_cache_queries",
)
FLOW_INCREMENTS = ("offered", "dispatched", "repeated", "prompt_tokens", "output_tokens")


def _count(name: str) -> sa.Column:
    return sa.Column(name, sa.BigInteger(), nullable=True)


def _real(name: str) -> sa.Column:
    return sa.Column(name, sa.Double(), nullable=True)


def _text(name: str) -> sa.Column:
    return sa.Column(name, sa.Text(), nullable=True)


def _increments(names: tuple[str, ...]) -> list[sa.Column]:
    return [column for name in names for column in (_count(name), _real(f"{name}_unseen_s"))]


def _gauge(name: str, *, newest: bool = True) -> list[sa.Column]:
    parts = [_real(f"{name}_sum"), _count(f"{name}_n"), _real(f"{name}_min"), _real(f"{name}_max")]
    return [*parts, _real(f"{name}_last")] if newest else parts


def _histograms(prefixes: tuple[str, ...], unit: str = "s") -> list[sa.Column]:
    return [
        column
        for prefix in prefixes
        for column in (
            sa.Column(f"{prefix}_counts", postgresql.ARRAY(sa.BigInteger()), nullable=True),
            _real(f"{prefix}_sum_{unit}"),
        )
    ]


def _engine() -> list[sa.Column]:
    return [
        _count("rounds"),
        _real("covered_s"),
        _count("restarts"),
        _count("flagged"),
        *_increments(INCREMENTS),
        *_gauge("running"),
        *_gauge("waiting"),
        *_gauge("kv_used_ratio"),
        *_gauge("fetch_s", newest=False),
        _count("kv_capacity_tokens"),
        _count("waiting_capacity"),
        _text("model"),
        *(c for stage in STAGES for c in (_real(f"{stage}_sum_s"), _count(f"{stage}_count"))),
        *_histograms(LATENCIES),
        *_histograms(LENGTHS, "tokens"),
    ]


def _health() -> list[sa.Column]:
    return [
        _count("rounds"),
        *_gauge("rho"),
        _real("rho_low"),
        _real("rho_high"),
        *_gauge("service_rate"),
        _real("service_rate_low"),
        _real("service_rate_high"),
        *_gauge("arrival_rate", newest=False),
        *_gauge("throughput", newest=False),
        *_gauge("output_tokens_rate", newest=False),
        *_gauge("headroom_rps", newest=False),
        *_gauge("running", newest=False),
        *_gauge("waiting", newest=False),
        *_gauge("kv_used_ratio", newest=False),
        _count("saturated"),
        _count("partial"),
        _text("grade"),
        _text("binding"),
    ]


def _gateway() -> list[sa.Column]:
    return [
        _count("rounds"),
        _real("covered_s"),
        *_increments(FLOW_INCREMENTS),
        sa.Column("outcomes", postgresql.JSONB(astext_type=sa.Text()), nullable=True),
        *_gauge("queued_requests"),
        *_gauge("in_flight_requests"),
        *_gauge("in_flight_tokens"),
        *_histograms(("queue_wait", "ttft")),
    ]


FAMILIES = {
    "engine": (("scope", "name", "engine"), (*LATENCIES, *LENGTHS), _engine),
    "health": (("scope", "name"), (), _health),
    "gateway": (("gateway", "tenant", "tier"), ("queue_wait", "ttft"), _gateway),
}


def _create(name: str) -> None:
    keys, histograms, measures = FAMILIES[name.partition("_")[0]]
    op.create_table(
        name,
        *(sa.Column(key, sa.Text(), nullable=False) for key in keys),
        sa.Column("at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("variant", sa.SmallInteger(), server_default=sa.text("0"), nullable=False),
        sa.Column("last_at", sa.DateTime(timezone=True), nullable=False),
        *(sa.Column(f"{prefix}_edges", sa.SmallInteger(), nullable=True) for prefix in histograms),
        *measures(),
        sa.PrimaryKeyConstraint(*keys, "at", "variant", name=op.f(f"pk_{name}")),
        postgresql_partition_by="RANGE (at)",
    )
    op.create_index(f"ix_{name}_at_brin", name, ["at"], postgresql_using="brin")


def _replace_health(partition_by: str) -> None:
    """Make the table anew with what it holds now; partitioning cannot be switched on in place."""
    op.execute(f"CREATE TABLE health_anew (LIKE health INCLUDING DEFAULTS) {partition_by}")
    if partition_by:
        op.execute("CREATE TABLE health_default PARTITION OF health_anew DEFAULT")
    op.execute("INSERT INTO health_anew SELECT * FROM health")
    op.execute("DROP TABLE health")
    op.execute("ALTER TABLE health_anew RENAME TO health")
    op.create_primary_key(op.f("pk_health"), "health", ["at", "scope", "name"])
    op.create_check_constraint(
        op.f("ck_health_scope"),
        "health",
        "scope IN (\x27fleet\x27, \x27pool\x27, \x27node\x27, \x27engine\x27, \x27model\x27, \x27tier\x27)",
    )
    op.create_index("ix_health_scope_name_at", "health", ["scope", "name", "at"])


def upgrade() -> None:
    op.execute("SET LOCAL lock_timeout = \x275s\x27")
    for family in FAMILIES:
        for level in ("minute", "hour"):
            _create(f"{family}_{level}")
    op.create_table(
        "rollup_due",
        sa.Column("level", sa.Text(), nullable=False),
        sa.Column("at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("not_before", sa.DateTime(timezone=True), nullable=False),
        sa.Column("touched", sa.Integer(), server_default=sa.text("1"), nullable=False),
        sa.PrimaryKeyConstraint("level", "at", name=op.f("pk_rollup_due")),
    )
    op.create_table(
        "rollup_horizon",
        sa.Column("source", sa.Text(), nullable=False),
        sa.Column("kept_since", sa.DateTime(timezone=True), nullable=False),
        sa.PrimaryKeyConstraint("source", name=op.f("pk_rollup_horizon")),
    )
    _replace_health("PARTITION BY RANGE (at)")
    op.create_index("ix_health_at_brin", "health", ["at"], postgresql_using="brin")
    # What was recorded before there were rollups is rolled up too.
    op.execute(
        "INSERT INTO rollup_due (level, at, not_before) "
        "SELECT DISTINCT \x27minute\x27, date_bin(\x271 minute\x27, at, \x27epoch\x27), now() FROM round"
    )


def downgrade() -> None:
    op.execute("SET LOCAL lock_timeout = \x275s\x27")
    _replace_health("")
    for table in ("rollup_horizon", "rollup_due"):
        op.drop_table(table)
    for family in FAMILIES:
        for level in ("hour", "minute"):
            op.drop_table(f"{family}_{level}")
