//! Names of queues, partitions and groups: 1 to 255 bytes of UTF-8 without control characters.
//!
//! A name never becomes a path, so `..` and `/` are ordinary characters.

/// The longest name, in bytes of UTF-8.
pub const NAME_BYTES_MAX: usize = 255;

/// The partition that a push without one goes to.
pub const DEFAULT_PARTITION: &str = "Default";

/// Why a name is refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum NameError {
    /// The name has no characters.
    #[error("name is empty")]
    Empty,
    /// The name is over [`NAME_BYTES_MAX`] bytes.
    #[error("name is {length} bytes long, at most {NAME_BYTES_MAX} are allowed")]
    TooLong {
        /// Its length in bytes.
        length: usize,
    },
    /// The name has a control character.
    #[error("name has the control character U+{code:04X} at byte {position}")]
    Control {
        /// The character's code point.
        code: u32,
        /// Where it stands, in bytes.
        position: usize,
    },
    /// The name is not UTF-8.
    #[error("name is not UTF-8")]
    NotUtf8,
}

/// Checks a name of a queue, partition or group.
pub fn check_name(name: &str) -> Result<(), NameError> {
    if name.is_empty() {
        return Err(NameError::Empty);
    }
    if name.len() > NAME_BYTES_MAX {
        return Err(NameError::TooLong { length: name.len() });
    }
    match name.char_indices().find(|(_, character)| character.is_control()) {
        Some((position, character)) => Err(NameError::Control { code: character as u32, position }),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_bounded_and_free_of_control_characters() {
        for good in ["a", "..", "a/b", "日本", " ", &"x".repeat(255)] {
            assert_eq!(check_name(good), Ok(()));
        }
        assert_eq!(check_name(""), Err(NameError::Empty));
        assert_eq!(check_name(&"x".repeat(256)), Err(NameError::TooLong { length: 256 }));
        assert_eq!(check_name("a\nb"), Err(NameError::Control { code: 10, position: 1 }));
        assert_eq!(check_name("\u{85}"), Err(NameError::Control { code: 0x85, position: 0 }));
    }
}
