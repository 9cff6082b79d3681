//! Files are not as they were left.
