//! Being told when messages may have become claimable.

use std::sync::{Arc, PoisonError, Weak};

use crate::model::{Error, PopRequest, PopSource};
use crate::record::GroupId;
use crate::sync::Mutex;
use crate::sync::atomic::{AtomicU64, Ordering};

use super::group::Wake;
use super::queue::Queue;
use super::{Engine, Result};

/// Registered interest; ends when it is dropped.
#[must_use = "the registration ends when this is dropped"]
pub struct Watch {
    id: u64,
    places: Vec<(Weak<Queue>, Option<GroupId>)>,
    /// Where it hears of new queues, if one may be for it.
    makers: Option<Arc<Makers>>,
    /// How many pops wait, this one included; `None` if this is none.
    waiting: Option<Arc<AtomicU64>>,
}

/// Who wants to hear of new queues.
pub(super) type Makers = Mutex<Vec<(u64, Wake)>>;

impl Watch {
    /// Whether the group was registered everywhere when the watch began. Where it was not, only commits wake; after the pop that
    /// registers the group a new watch hears of everything.
    pub fn is_complete(&self) -> bool {
        self.places.iter().all(|(_, group)| group.is_some())
    }
}

impl Engine {
    /// `wake` is called, quickly and perhaps without need, from any thread, when messages may have become claimable for such a pop:
    /// after a commit, a retry, an expiry, the end of a delay, a seek, an enabling, new settings. Watch first, then pop, then wait;
    /// after a wake begin again with a new watch. A pop that registers its group makes the watch incomplete
    /// ([`Watch::is_complete`]): watch and pop once more before waiting.
    ///
    /// # Errors
    ///
    /// `UnknownQueue` or `BadRequest`.
    pub fn watch(&self, request: &PopRequest, wake: Wake) -> Result<Watch> {
        let id = self.shared.watch_counter.fetch_add(1, Ordering::Relaxed);
        let makers = matches!(request.source, PopSource::Discover { .. }).then(|| {
            let makers = Arc::clone(&self.shared.makers);
            makers.lock().unwrap_or_else(PoisonError::into_inner).push((id, Arc::clone(&wake)));
            makers
        });
        self.shared.waiting.fetch_add(1, Ordering::Relaxed);
        // What is registered so far ends with this, also if the rest is refused.
        let mut watch = Watch { id, places: Vec::new(), makers, waiting: Some(Arc::clone(&self.shared.waiting)) };
        for queue in self.sources(&request.source)? {
            let group = {
                let mut state = queue.state();
                let group = state.group_id(request.group.as_deref());
                if let Some(found) = group.and_then(|group| state.groups.get_mut(&group)) {
                    found.add_waiter(id, Arc::clone(&wake));
                }
                group
            };
            if group.is_none() {
                // Until the group exists, any commit to the queue may be for it.
                queue.add_watcher(id, Arc::clone(&wake));
            }
            watch.places.push((Arc::downgrade(&queue), group));
        }
        Ok(watch)
    }

    /// As [`Engine::watch`], for a reader without a group: woken when messages are committed to the queue.
    ///
    /// # Errors
    ///
    /// `UnknownQueue`.
    pub fn watch_queue(&self, queue: &str, wake: Wake) -> std::result::Result<Watch, Error> {
        let id = self.shared.watch_counter.fetch_add(1, Ordering::Relaxed);
        let queue = self.find_queue(queue)?;
        queue.add_watcher(id, wake);
        Ok(Watch { id, places: vec![(Arc::downgrade(&queue), None)], makers: None, waiting: None })
    }

    /// Waiting pops, each counted once in however many queues it waits, and be it in none.
    pub(super) fn waiting_pops(&self) -> u64 {
        self.shared.waiting.load(Ordering::Relaxed)
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        if let Some(waiting) = &self.waiting {
            waiting.fetch_sub(1, Ordering::Relaxed);
        }
        if let Some(makers) = &self.makers {
            makers.lock().unwrap_or_else(PoisonError::into_inner).retain(|maker| maker.0 != self.id);
        }
        for (queue, group) in &self.places {
            let Some(queue) = queue.upgrade() else { continue };
            match group {
                Some(group) => {
                    let mut woken = Vec::new();
                    {
                        let mut state = queue.state();
                        let state = &mut *state;
                        if let Some(found) = state.groups.get_mut(group) {
                            found.remove_waiter(self.id);
                            // The wake-up that this one got may have been for messages that it did not take.
                            if found.waiter_count() > 0 && found.has_ready(&state.partitions) {
                                found.wake(1, &mut woken);
                            }
                        }
                    }
                    woken.iter().for_each(|wake| wake());
                }
                None => queue.remove_watcher(self.id),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::EngineOptions;
    use crate::model::Now;
    use crate::storage::disk::sim::SimDisk;

    /// A watch that was refused stayed in the list of those who wait for new queues, for ever.
    #[test]
    fn a_watch_that_is_refused_leaves_nothing_behind() {
        let now = Now { wall_us: 1_700_000_000_000_000, steady_us: 1_000_000_000 };
        let (engine, _) = Engine::open(SimDisk::new(1).root(), EngineOptions::default(), now).unwrap();
        let request = |namespace: Option<&str>| PopRequest {
            source: PopSource::Discover { namespace: namespace.map(str::to_owned), task: None },
            ..PopRequest::any("", 1)
        };
        let registered = || (engine.shared.makers.lock().unwrap().len(), engine.waiting_pops());
        assert!(engine.watch(&request(None), Arc::new(|| {})).is_err());
        assert_eq!(registered(), (0, 0));
        let watch = engine.watch(&request(Some("shop")), Arc::new(|| {})).unwrap();
        assert_eq!(registered(), (1, 1));
        drop(watch);
        assert_eq!(registered(), (0, 0));
    }
}
