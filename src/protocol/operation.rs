//! The table of operations: number, request and reply of each, in one place.
//!
//! A number never changes its meaning and is never reused. The high byte is the family.

use crate::model::{
    AckReply, AckRequest, DeadLetter, DeadLetterQuery, ExtendReply, FetchReply, GroupInfo, GroupProgress, Losses, MessageView,
    PartitionInfo, PopReply, PushReply, PushRequest, QueueInfo, RemovedGroup, ServerStats, TransactionReply, TransactionRequest,
};

use bytes::Bytes;

use super::*;

/// A request that has a reply: binds the types of both to the operation.
pub trait Call: Wire {
    /// The operation.
    const OPERATION: Operation;
    /// What the server answers.
    type Reply: Wire;
}

macro_rules! operations {
    (
        calls { $($(#[$doc:meta])* $number:literal $name:ident: $request:ty => $reply:ty;)* }
        notices { $($(#[$notice_doc:meta])* $notice_number:literal $notice:ident: $notice_type:ty;)* }
    ) => {
        /// What a frame asks or answers.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
        #[repr(u16)]
        pub enum Operation {
            $($(#[$doc])* $name = $number,)*
            $($(#[$notice_doc])* $notice = $notice_number,)*
        }

        impl Operation {
            /// All operations, in order of family.
            pub const ALL: &[Operation] = &[$(Self::$name,)* $(Self::$notice,)*];

            /// The operation's name.
            pub fn name(self) -> &'static str {
                match self {
                    $(Self::$name => stringify!($name),)*
                    $(Self::$notice => stringify!($notice),)*
                }
            }
        }

        /// A decoded request.
        #[derive(Debug, Clone)]
        pub enum Request {
            $($(#[$doc])* $name($request),)*
        }

        impl Request {
            /// Decodes a body; an operation that only a server sends is not known as a request.
            pub fn decode(operation: u16, body: &Bytes) -> Result<Self, ProtocolError> {
                match operation {
                    $($number => <$request as Wire>::from_body(body).map(Self::$name),)*
                    number => Err(ProtocolError::UnknownOperation { number }),
                }
            }

            /// The operation.
            pub fn operation(&self) -> Operation {
                match self { $(Self::$name(_) => Operation::$name,)* }
            }

            fn put_body(&self, out: &mut Chunks) {
                match self { $(Self::$name(request) => request.encode(out),)* }
            }
        }

        /// A decoded response that is no error.
        #[derive(Debug, Clone)]
        pub enum Response {
            $($(#[$doc])* $name($reply),)*
            $($(#[$notice_doc])* $notice($notice_type),)*
        }

        impl Response {
            /// Decodes a body.
            pub fn decode(operation: u16, body: &Bytes) -> Result<Self, ProtocolError> {
                match operation {
                    $($number => <$reply as Wire>::from_body(body).map(Self::$name),)*
                    $($notice_number => <$notice_type as Wire>::from_body(body).map(Self::$notice),)*
                    number => Err(ProtocolError::UnknownOperation { number }),
                }
            }

            /// The operation.
            pub fn operation(&self) -> Operation {
                match self {
                    $(Self::$name(_) => Operation::$name,)*
                    $(Self::$notice(_) => Operation::$notice,)*
                }
            }

            fn put_body(&self, out: &mut Chunks) {
                match self {
                    $(Self::$name(reply) => reply.encode(out),)*
                    $(Self::$notice(notice) => notice.encode(out),)*
                }
            }
        }

        $(
            impl Call for $request {
                const OPERATION: Operation = Operation::$name;
                type Reply = $reply;
            }
        )*
    };
}

operations! {
    calls {
        /// The first exchange of a connection.
        0x0001 Hello: Hello => HelloReply;
        /// Whether the peer is alive.
        0x0002 Ping: Ping => Pong;

        /// Stores messages in one partition.
        0x0101 Push: PushRequest => PushReply;
        /// Pushes and acknowledgements, all or none.
        0x0102 Transaction: TransactionRequest => TransactionReply;

        /// Reads a range without a group.
        0x0201 Fetch: Fetch => FetchReply;
        /// Takes messages for a group.
        0x0202 Pop: Pop => PopReply;
        /// Says what became of messages.
        0x0203 Ack: AckRequest => AckReply;
        /// Makes a lease last longer.
        0x0204 Extend: Extend => ExtendReply;
        /// Hands a lease back.
        0x0205 Release: Release => Released;

        /// Opens a subscription.
        0x0301 Subscribe: Subscribe => Subscribed;
        /// Adds credit to a subscription; has no reply but an error.
        0x0302 Credit: Credit => Done;
        /// Ends a subscription.
        0x0303 Unsubscribe: Unsubscribe => Done;

        /// Makes a queue.
        0x0401 QueueCreate: QueueCreate => QueueInfo;
        /// One queue.
        0x0402 QueueGet: QueueGet => QueueInfo;
        /// All queues, by pages.
        0x0403 QueueList: QueueList => QueuePage;
        /// Changes settings.
        0x0404 QueueUpdate: QueueUpdate => QueueInfo;
        /// Deletes a queue.
        0x0405 QueueDelete: QueueDelete => Deleted;
        /// Partitions of a queue, by pages.
        0x0406 PartitionList: PartitionList => PartitionPage;
        /// One partition.
        0x0407 PartitionGet: PartitionGet => PartitionInfo;

        /// Declares a group.
        0x0501 GroupDeclare: GroupDeclare => GroupInfo;
        /// One group.
        0x0502 GroupGet: GroupGet => GroupProgress;
        /// Groups of one queue or all, perhaps only those that lag.
        0x0503 GroupList: GroupList => GroupPage;
        /// Changes a group.
        0x0504 GroupUpdate: GroupUpdate => GroupInfo;
        /// Deletes a group in one queue or everywhere.
        0x0505 GroupDelete: GroupDelete => RemovedGroup;
        /// Changes where a group starts in partitions that it has not been in.
        0x0506 GroupStart: GroupStart => GroupStarted;

        /// Cursors of a group, by pages.
        0x0601 Progress: Progress => ProgressPage;
        /// Moves cursors.
        0x0602 Seek: Seek => SeekReply;
        /// One message.
        0x0603 MessageGet: MessageGet => MessageView;

        /// Dead letters, by pages.
        0x0701 DeadLetterList: DeadLetterQuery => DeadLetterPage;
        /// One dead letter.
        0x0702 DeadLetterGet: DeadLetterGet => DeadLetter;
        /// Pushes a dead letter again.
        0x0703 DeadLetterReplay: DeadLetterReplay => PushReply;
        /// Removes a dead letter.
        0x0704 DeadLetterDelete: DeadLetterDelete => Deleted;

        /// Writes a remark on a message.
        0x0801 TraceWrite: TraceWrite => Done;
        /// Remarks by name.
        0x0802 TraceByName: TraceByName => TracePage;
        /// Remarks on a message.
        0x0803 TraceByMessage: TraceByMessage => TracePage;
        /// The names of all remarks.
        0x0804 TraceNames: TraceNames => TraceNamePage;

        /// Counters of the server.
        0x0901 Stats: Stats => ServerStats;
        /// Tries a filter.
        0x0902 FilterTest: FilterTest => FilterResult;
        /// Messages that groups lost.
        0x0903 LossesGet: LossesGet => Losses;
    }
    notices {
        /// Messages of a subscription.
        0x0310 Delivery: Delivery;
        /// An idle subscription is alive.
        0x0311 Heartbeat: Heartbeat;
        /// A lease of a subscription ended.
        0x0312 LeaseEnded: LeaseEnded;
        /// The client ended the subscription.
        0x0313 SubscriptionEnd: SubscriptionEnd;
    }
}

impl Operation {
    /// The number on the wire.
    pub fn number(self) -> u16 {
        self as u16
    }

    /// The operation of a number.
    pub fn from_number(number: u16) -> Option<Self> {
        Self::ALL.iter().copied().find(|operation| operation.number() == number)
    }
}

impl Request {
    /// The request as a frame, length field first.
    pub fn encode(&self, correlation_id: u32) -> Chunks {
        Frame::encode(self.operation().number(), FrameKind::Request, correlation_id, |out| self.put_body(out))
    }
}

impl Response {
    /// The response as a frame, length field first. `more` says that other frames with this correlation id follow.
    pub fn encode(&self, correlation_id: u32, more: bool) -> Chunks {
        Frame::encode(self.operation().number(), FrameKind::Response { more }, correlation_id, |out| self.put_body(out))
    }
}

/// A request of a known type as a frame, length field first.
pub fn encode_call<C: Call>(call: &C, correlation_id: u32) -> Chunks {
    Frame::encode(C::OPERATION.number(), FrameKind::Request, correlation_id, |out| call.encode(out))
}

/// An error as a frame, length field first. `operation` is that of the request, or 0 where there is none.
pub fn encode_error(operation: u16, correlation_id: u32, error: &ErrorReply) -> Chunks {
    Frame::encode(operation, FrameKind::Error, correlation_id, |out| error.encode(out))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_number_is_its_own_operation() {
        for &operation in Operation::ALL {
            assert_eq!(Operation::from_number(operation.number()), Some(operation));
        }
        assert_eq!(Operation::from_number(0), None);
    }

    #[test]
    fn a_server_frame_is_no_request() {
        let body = Heartbeat { time_us: 1 }.to_chunks().into_bytes();
        let number = Operation::Heartbeat.number();
        assert_eq!(Request::decode(number, &body).unwrap_err(), ProtocolError::UnknownOperation { number });
        assert!(matches!(Response::decode(number, &body), Ok(Response::Heartbeat(Heartbeat { time_us: 1 }))));
    }
}
