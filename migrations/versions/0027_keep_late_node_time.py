"""Keep what is written to the node time of a closed month, by whomever, as a list of late node time."""

import sqlalchemy as sa
from alembic import op

revision = "0027"
down_revision = "0026"
branch_labels = None
depends_on = None

READER = "rhodeck_reader"
#: Transition tables by kind of change. One trigger may not name those of two kinds.
CHANGES = {
    "insert": "REFERENCING NEW TABLE AS added",
    "update": "REFERENCING NEW TABLE AS added OLD TABLE AS removed",
    "delete": "REFERENCING OLD TABLE AS removed",
}


def upgrade() -> None:
    op.execute("SET LOCAL lock_timeout = '5s'")
    op.create_table(
        "late_node_time",
        sa.Column("id", sa.BigInteger(), sa.Identity(), nullable=False),
        sa.Column("month", sa.Text(), nullable=False),
        sa.Column("node", sa.Text(), nullable=False),
        sa.Column("quarter", sa.DateTime(timezone=True), nullable=False),
        sa.Column("pool", sa.Text(), nullable=False),
        sa.Column("price_class", sa.Text(), nullable=False),
        sa.Column("change_s", sa.Numeric(20, 6), nullable=False),
        sa.Column("received_at", sa.DateTime(timezone=True), nullable=False),
        sa.ForeignKeyConstraint(
            ["month"], ["month_close.month"], name=op.f("fk_late_node_time_month_month_close")
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_late_node_time")),
    )
    op.create_index("ix_late_node_time_month", "late_node_time", ["month"])
    op.execute(
        """
        CREATE FUNCTION keep_late_node_time() RETURNS trigger LANGUAGE plpgsql AS $$
        BEGIN
            IF TG_OP <> 'INSERT' THEN
                INSERT INTO late_node_time
                    (month, node, quarter, pool, price_class, change_s, received_at)
                SELECT c.month, o.node, o.quarter, o.pool, o.price_class, -o.up_s, now()
                FROM removed o JOIN month_close c ON o.quarter >= c.starts_at AND o.quarter < c.ends_at;
            END IF;
            IF TG_OP <> 'DELETE' THEN
                INSERT INTO late_node_time
                    (month, node, quarter, pool, price_class, change_s, received_at)
                SELECT c.month, n.node, n.quarter, n.pool, n.price_class, n.up_s, now()
                FROM added n JOIN month_close c ON n.quarter >= c.starts_at AND n.quarter < c.ends_at;
            END IF;
            RETURN NULL;
        END $$
        """
    )
    for change, tables in CHANGES.items():
        op.execute(
            f"CREATE TRIGGER keep_late_{change} AFTER {change} ON node_quarter {tables} "
            "FOR EACH STATEMENT EXECUTE FUNCTION keep_late_node_time()"
        )
    for name, events, each in (
        ("append_only", "UPDATE OR DELETE", "ROW"),
        ("append_only_truncate", "TRUNCATE", "STATEMENT"),
    ):
        op.execute(
            f"CREATE TRIGGER {name} BEFORE {events} ON late_node_time "
            f"FOR EACH {each} EXECUTE FUNCTION refuse_change()"
        )
    op.execute(
        f"""
        DO $$ BEGIN
            IF EXISTS (SELECT FROM pg_roles WHERE rolname = '{READER}') THEN
                GRANT SELECT ON late_node_time TO {READER};
            END IF;
        END $$
        """
    )


def downgrade() -> None:
    op.execute("SET LOCAL lock_timeout = '5s'")
    for change in CHANGES:
        op.execute(f"DROP TRIGGER keep_late_{change} ON node_quarter")
    op.execute("DROP FUNCTION keep_late_node_time()")
    op.drop_table("late_node_time")
