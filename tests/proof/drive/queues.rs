//! Queues: their settings and their dead letters.

use super::*;

impl Driver {
    pub(super) fn create(&mut self, queue: &str, has_retention: bool) -> Result<(), Stop> {
        let outcome = self.engine().create_queue(queue, &settings(has_retention), self.now);
        if self.model.queues.contains_key(queue) {
            return self.refused(outcome.map(drop), &[ErrorCode::QueueExists]);
        }
        let mut after = self.model.clone();
        let retention_s = if has_retention { RETENTION_S } else { 0 };
        after.queues.insert(queue.to_owned(), QueueModel { retention_s, ..QueueModel::default() });
        self.settle(outcome, Vec::new(), after).map(drop)
    }

    pub(super) fn change_settings(&mut self, queue: &str, lease_s: u32) -> Result<(), Stop> {
        if !self.model.queues.contains_key(queue) {
            return Ok(());
        }
        let mut after = self.model.clone();
        after.queue(queue).lease_s = lease_s;
        let patch = SettingsPatch { lease_time_s: Some(lease_s), ..SettingsPatch::default() };
        let outcome = self.engine().update_queue(queue, &patch, self.now);
        self.settle(outcome, Vec::new(), after).map(drop)
    }

    pub(super) fn set(&mut self, queue: &str, rule: Rule) -> Result<(), Stop> {
        if !self.model.queues.contains_key(queue) {
            return Ok(());
        }
        let mut after = self.model.clone();
        let model = after.queue(queue);
        let mut patch = SettingsPatch::default();
        match rule {
            Rule::DelayedProcessing(seconds) => {
                (model.delay_s, patch.delayed_processing_s) = (seconds.into(), Some(seconds));
            }
            Rule::WindowBuffer(seconds) => (model.window_s, patch.window_buffer_s) = (seconds.into(), Some(seconds)),
            Rule::RetryLimit(limit) => (model.retry_limit, patch.retry_limit) = (limit, Some(limit)),
            Rule::DeadLetters(is_on) => {
                (model.has_letters, patch.dead_letter_queue) = (is_on, Some(is_on));
                patch.dlq_after_max_retries = Some(is_on);
            }
            Rule::NamedGroups(is_on) => (model.has_groups, patch.consumer_groups) = (is_on, Some(is_on)),
            Rule::Retention(seconds) => {
                (model.retention_s, patch.retention_s) = (seconds, Some(seconds));
                patch.retention_enabled = Some(true);
            }
            Rule::MaxWait(seconds) => (model.max_wait_s, patch.max_wait_time_s) = (seconds, Some(seconds)),
            Rule::CompletedRetention(seconds) => {
                (model.completed_s, patch.completed_retention_s) = (seconds, Some(seconds));
                patch.retention_enabled = Some(true);
            }
            Rule::RetentionBytes(bytes) => (model.retention_bytes, patch.retention_bytes) = (bytes, Some(bytes)),
        }
        let outcome = self.engine().update_queue(queue, &patch, self.now);
        self.settle(outcome, Vec::new(), after).map(drop)
    }

    pub(super) fn delete(&mut self, queue: &str) -> Result<(), Stop> {
        let mut after = self.model.clone();
        let existed = after.queues.remove(queue).is_some();
        let outcome = self.engine().delete_queue(queue, self.now);
        let deleted = self.settle(outcome, Vec::new(), after)?;
        self.held.retain(|held| QUEUES[held.queue] != queue);
        right(deleted == existed, || format!("deleted {deleted}"))
    }

    pub(super) fn letter(&mut self, queue: &str, is_replay: bool) -> Result<(), Stop> {
        let Some(found) = self.model.queues.get(queue) else { return Ok(()) };
        let Some(letter) = found.letters.values().find(|letter| letter.key != ' ').cloned() else { return Ok(()) };
        let mut after = self.model.clone();
        let model = after.queue(queue);
        model.letters.remove(&letter.id);
        if !is_replay {
            let outcome = self.engine().delete_dead_letter(queue, letter.id, self.now);
            return self.settle(outcome, Vec::new(), after).map(drop);
        }
        let item = Item { tag: letter.tag, size: letter.size, key: letter.key, id: Some(format!("dlq:{}", letter.id)) };
        let expected = model.push(&letter.partition, &[item], None, self.now.wall_us);
        if expected == [PushResult::Dropped] {
            model.letters.insert(letter.id, letter.clone());
        }
        let outcome = self.engine().replay_dead_letter(queue, letter.id, self.now);
        let reply = self.settle(outcome, Vec::new(), after)?;
        self.compare_results(queue, &letter.partition, &reply, &expected)
    }
}
