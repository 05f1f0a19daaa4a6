"""All tables of the control database, under one name: `from control.tables import SampleRow`.

Declarations stand in `tables_<noun>`, one module for each part of the house; migrations
create them plus what only SQL can say (partitions, triggers, roles). Prevents: a table that Alembic
does not see because nobody imported its module.
"""

from control.tables_alerts import (
    AlertDeliveryRow,
    AlertGroupRow,
    AlertNoticeRow,
    AlertRuleRow,
    AlertSilenceRow,
    WebhookRow,
)
from control.tables_base import APPEND_ONLY, PARTITIONED, Base
from control.tables_discovery import (
    DiscoveredNodeRow,
    DiscoverySourceRow,
    EndpointSeenRow,
    GpuRow,
    GpuSampleRow,
    NodeEndpointRow,
)
from control.tables_estimates import EstimateRunRow, EstimateSnapshotRow, EstimateTraceRow
from control.tables_exports import ExportDeliveryRow, ExportDestinationRow
from control.tables_fleet import (
    AlertRow,
    AlertTimerRow,
    CapacityEstimateRow,
    GatewayRow,
    GatewaySampleRow,
    HealthRow,
    HistogramEdgesRow,
    NodeRow,
    PoolRow,
    RoundRow,
    SampleRow,
    ScrapeFailureRow,
)
from control.tables_flow import FlowMinuteRow, FlowNowRow
from control.tables_invoices import InvoiceLineRow, InvoiceMappingRow, InvoiceRow
from control.tables_month_keys import MonthKeyRow
from control.tables_months import (
    AllocationRuleRow,
    CommitmentRow,
    LateNodeTimeRow,
    MonthCloseRow,
    MonthClosingRow,
    MonthCorrectionRow,
    MonthLineRow,
)
from control.tables_people import AccountRow, ApiTokenRow, SignInFailureRow, SignInRow, TenantKeyRow
from control.tables_policy import (
    AckRow,
    AssignmentRow,
    AuditRow,
    CommandKeyRow,
    GatewayObservedRow,
    LeaseRow,
    PolicyRevisionRow,
    RolloutRow,
)
from control.tables_promsource import NodeSourceRow, PromBackfillRow, PromSourceRow
from control.tables_quality import QualityFindingRow
from control.tables_rollup import RollupDueRow, RollupHorizonRow
from control.tables_spend import NodeQuarterRow, PriceRow, UsageCursorRow, UsageQuarterRow, UsageRecordRow

__all__ = [
    "APPEND_ONLY",
    "PARTITIONED",
    "AccountRow",
    "AckRow",
    "AlertDeliveryRow",
    "AlertGroupRow",
    "AlertNoticeRow",
    "AlertRow",
    "AlertRuleRow",
    "AlertSilenceRow",
    "AlertTimerRow",
    "AllocationRuleRow",
    "ApiTokenRow",
    "AssignmentRow",
    "AuditRow",
    "Base",
    "CapacityEstimateRow",
    "CommandKeyRow",
    "CommitmentRow",
    "DiscoveredNodeRow",
    "DiscoverySourceRow",
    "EndpointSeenRow",
    "EstimateRunRow",
    "EstimateSnapshotRow",
    "EstimateTraceRow",
    "ExportDeliveryRow",
    "ExportDestinationRow",
    "FlowMinuteRow",
    "FlowNowRow",
    "GatewayObservedRow",
    "GatewayRow",
    "GatewaySampleRow",
    "GpuRow",
    "GpuSampleRow",
    "HealthRow",
    "HistogramEdgesRow",
    "InvoiceLineRow",
    "InvoiceMappingRow",
    "InvoiceRow",
    "LateNodeTimeRow",
    "LeaseRow",
    "MonthCloseRow",
    "MonthClosingRow",
    "MonthCorrectionRow",
    "MonthKeyRow",
    "MonthLineRow",
    "NodeEndpointRow",
    "NodeQuarterRow",
    "NodeRow",
    "NodeSourceRow",
    "PolicyRevisionRow",
    "PoolRow",
    "PriceRow",
    "PromBackfillRow",
    "PromSourceRow",
    "QualityFindingRow",
    "RolloutRow",
    "RollupDueRow",
    "RollupHorizonRow",
    "RoundRow",
    "SampleRow",
    "ScrapeFailureRow",
    "SignInFailureRow",
    "SignInRow",
    "TenantKeyRow",
    "UsageCursorRow",
    "UsageQuarterRow",
    "UsageRecordRow",
    "WebhookRow",
]
