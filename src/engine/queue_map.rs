//! The queues of an engine, found by name and by incarnation: a lease and a partition's id name the incarnation alone, and looking
//! through all queues for it would make every acknowledgement dearer with each queue.

use std::collections::HashMap;
use std::sync::Arc;

use super::queue::Queue;

/// The queues of an engine.
#[derive(Default)]
pub(super) struct QueueMap {
    by_name: HashMap<String, Arc<Queue>>,
    by_incarnation: HashMap<u64, Arc<Queue>, rapidhash::fast::RandomState>,
}

impl QueueMap {
    /// Adds a queue; one of the same name goes.
    pub fn insert(&mut self, queue: Arc<Queue>) {
        self.remove(&queue.name);
        self.by_incarnation.insert(queue.incarnation, Arc::clone(&queue));
        self.by_name.insert(queue.name.clone(), queue);
    }

    /// Takes a queue out.
    pub fn remove(&mut self, name: &str) {
        if let Some(queue) = self.by_name.remove(name) {
            self.by_incarnation.remove(&queue.incarnation);
        }
    }

    /// The queue of a name.
    pub fn get(&self, name: &str) -> Option<&Arc<Queue>> {
        self.by_name.get(name)
    }

    /// The queue of an incarnation.
    pub fn of_incarnation(&self, incarnation: u64) -> Option<&Arc<Queue>> {
        self.by_incarnation.get(&incarnation)
    }

    /// All queues, in no order.
    pub fn values(&self) -> impl Iterator<Item = &Arc<Queue>> {
        self.by_name.values()
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.by_name.len()
    }
}

#[cfg(test)]
mod tests {
    use crate::engine::{Engine, EngineOptions};
    use crate::model::{Now, SettingsPatch};
    use crate::storage::disk::sim::SimDisk;

    #[test]
    fn a_deleted_queue_is_found_by_neither_and_its_successor_by_both() {
        let now = Now { wall_us: 1_000_000, steady_us: 1_000_000 };
        let (engine, _) = Engine::open(SimDisk::new(1).root(), EngineOptions::default(), now).unwrap();
        let first = engine.create_queue("q", &SettingsPatch::default(), now).unwrap();
        assert_eq!(engine.queue_of_incarnation(first.incarnation).as_deref(), Some("q"));
        assert!(engine.delete_queue("q", now).unwrap());
        assert_eq!(engine.queue_of_incarnation(first.incarnation), None);
        let second = engine.create_queue("q", &SettingsPatch::default(), now).unwrap();
        assert_ne!(first.incarnation, second.incarnation);
        assert_eq!(engine.queue_of_incarnation(first.incarnation), None);
        assert_eq!(engine.queue_of_incarnation(second.incarnation).as_deref(), Some("q"));
        assert_eq!(engine.settings("q").unwrap().0, second.incarnation);
    }
}
