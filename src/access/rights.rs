//! What each operation of the binary protocol needs.

use crate::protocol::{Operation, Request};

use super::Right;

/// What the operation needs. A transaction needs more if it does more than push; see [`needed`].
pub fn right_of(operation: Operation) -> Right {
    match operation {
        Operation::Hello | Operation::Ping => Right::Any,

        Operation::Push | Operation::Transaction => Right::Push,

        Operation::Fetch
        | Operation::QueueGet
        | Operation::QueueList
        | Operation::PartitionList
        | Operation::PartitionGet
        | Operation::GroupGet
        | Operation::GroupList
        | Operation::Progress
        | Operation::MessageGet
        | Operation::DeadLetterList
        | Operation::DeadLetterGet
        | Operation::TraceByName
        | Operation::TraceByMessage
        | Operation::TraceNames
        | Operation::Stats
        | Operation::LossesGet
        | Operation::FilterTest => Right::Read,

        Operation::Pop
        | Operation::Ack
        | Operation::Extend
        | Operation::Release
        | Operation::Subscribe
        | Operation::Credit
        | Operation::Unsubscribe
        | Operation::QueueCreate
        | Operation::QueueUpdate
        | Operation::GroupDeclare
        | Operation::GroupUpdate
        | Operation::GroupStart
        | Operation::Seek
        | Operation::DeadLetterReplay
        | Operation::DeadLetterDelete
        | Operation::TraceWrite => Right::Work,

        Operation::QueueDelete | Operation::GroupDelete => Right::Delete,

        // Only a server sends these; they do not decode as requests.
        Operation::Delivery | Operation::Heartbeat | Operation::LeaseEnded | Operation::SubscriptionEnd => Right::Server,
    }
}

/// What the request needs.
pub fn needed(request: &Request) -> Right {
    match request {
        Request::Transaction(transaction) if !transaction.acks.is_empty() || !transaction.required_leases.is_empty() => {
            Right::Work
        }
        request => right_of(request.operation()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::{AckRequest, TransactionRequest};

    #[test]
    fn a_transaction_needs_what_it_does() {
        let pushes = Request::Transaction(TransactionRequest::default());
        assert_eq!(needed(&pushes), Right::Push);
        let ack = AckRequest { queue: "q".into(), partition_id: 0, group: None, lease_id: String::new(), items: Vec::new() };
        let acks = TransactionRequest { acks: vec![ack], ..Default::default() };
        assert_eq!(needed(&Request::Transaction(acks)), Right::Work);
        let leases = TransactionRequest { required_leases: vec!["1-1".into()], ..Default::default() };
        assert_eq!(needed(&Request::Transaction(leases)), Right::Work);
    }
}
