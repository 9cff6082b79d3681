//! Traces: remarks on a message's way.

use bytes::Bytes;

use crate::model::TraceEvent;

use super::wire::{wire_struct, wire_type};

wire_struct!(TraceEvent {
    partition_id: u32,
    transaction_id: String,
    group: String,
    names: Vec<String>,
    event_type: String,
    data: Bytes,
    worker_id: String,
    created_at_us: u64,
});

wire_type!(
    /// Writes a remark. The server sets its time.
    TraceWrite {
        /// The queue.
        queue: String,
        /// The remark.
        event: TraceEvent,
    }
);

wire_type!(
    /// Remarks that have a name, the newest first.
    TraceByName {
        /// Only of this queue; `None` is all queues.
        queue: Option<String>,
        /// The name.
        name: String,
        /// At most so many.
        limit: u32,
        /// Skip so many.
        skip: u32,
    }
);

wire_type!(
    /// Remarks on one message, the oldest first.
    TraceByMessage {
        /// The queue.
        queue: String,
        /// The message's partition.
        partition_id: u32,
        /// The message's transaction id.
        transaction_id: String,
    }
);

wire_type!(
    /// The names of all remarks.
    TraceNames {}
);

wire_type!(
    /// A name of remarks.
    TraceName {
        /// The name.
        name: String,
        /// Remarks that have it.
        count: u64,
    }
);

wire_type!(
    /// Names of remarks.
    TraceNamePage {
        /// The names, in order.
        names: Vec<TraceName>,
    }
);

wire_type!(
    /// A remark and the queue that it is of.
    TraceRecord {
        /// The queue.
        queue: String,
        /// The remark.
        event: TraceEvent,
    }
);

wire_type!(
    /// Remarks.
    TracePage {
        /// The remarks.
        traces: Vec<TraceRecord>,
    }
);
