//! Entries for a checkpoint table, one behind the other in one buffer: a checkpoint may have millions, and a buffer for each would
//! cost as many allocations while commits wait, and leave the heap in pieces.

use crate::format::control::ControlOp;
use crate::storage::table::{Entry, Key};

/// Encoded values and what each belongs to, in the order in which they came.
#[derive(Debug)]
pub(super) struct Rows<K = Key> {
    values: Vec<u8>,
    /// The length of each value; `None` if there is none.
    keys: Vec<(K, Option<u32>)>,
}

impl<K> Default for Rows<K> {
    fn default() -> Self {
        Self { values: Vec::new(), keys: Vec::new() }
    }
}

impl<K> Rows<K> {
    /// Adds a value, which `encode` appends.
    pub fn put(&mut self, key: K, encode: impl FnOnce(&mut Vec<u8>)) {
        let start = self.values.len();
        encode(&mut self.values);
        self.keys.push((key, Some((self.values.len() - start) as u32)));
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.keys.is_empty()
    }

    /// Everything, in order.
    pub fn iter(&self) -> impl Iterator<Item = (&K, Option<&[u8]>)> {
        let mut rest = self.values.as_slice();
        self.keys.iter().map(move |(key, length)| {
            let value = length.map(|length| {
                let (value, behind) = rest.split_at_checked(length as usize).unwrap_or((rest, &[]));
                rest = behind;
                value
            });
            (key, value)
        })
    }

    /// What everything belongs to.
    pub fn into_keys(self) -> impl Iterator<Item = K> {
        self.keys.into_iter().map(|(key, _)| key)
    }
}

impl Rows {
    /// Adds an operation under its own key; one that the table does not keep is left out.
    pub fn put_operation(&mut self, operation: &ControlOp) {
        if let Some((kind, a, b)) = operation.key() {
            self.put(Key { kind, a, b }, |bytes| operation.encode(bytes));
        }
    }

    /// Adds operations that are one value together.
    pub fn put_all(&mut self, key: Key, operations: &[ControlOp]) {
        self.put(key, |bytes| operations.iter().for_each(|operation| operation.encode(bytes)));
    }

    /// Adds a removal.
    pub fn remove(&mut self, key: Key) {
        self.keys.push((key, None));
    }

    /// Everything as the table takes it.
    pub fn entries(&self) -> impl Iterator<Item = Entry<'_>> {
        self.iter().map(|(&key, value)| Entry { key, value })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_come_back_in_order_with_their_values_and_removals() {
        let key = |a| Key { kind: 1, a, b: 0 };
        let mut rows = Rows::default();
        rows.put(key(1), |bytes| bytes.extend([1, 2, 3]));
        rows.remove(key(2));
        rows.put(key(3), |_| ());
        rows.put_operation(&ControlOp::DeadLetter { id: 4, state: vec![5] });
        rows.put_operation(&ControlOp::DeadLetterRemoved(4));
        let mut letter = Vec::new();
        ControlOp::DeadLetter { id: 4, state: vec![5] }.encode(&mut letter);
        let found: Vec<_> = rows.entries().map(|entry| (entry.key.a, entry.key.b, entry.value)).collect();
        assert_eq!(found, [(1, 0, Some(&[1, 2, 3][..])), (2, 0, None), (3, 0, Some(&[][..])), (0, 4, Some(letter.as_slice()))]);
    }
}
