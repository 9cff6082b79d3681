//! Any bytes are a cursor or an error, and a cursor keeps its meaning when it is written again.
#![no_main]

use fanlog::engine::delivery::Cursor;
use fanlog::format::cursor::CursorFront;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    let front = CursorFront::decode(bytes);
    let Ok(cursor) = Cursor::decode(bytes) else { return };
    assert_eq!(front, Ok(CursorFront { next: cursor.next(), version: cursor.version() }));
    let mut again = Vec::new();
    cursor.encode(&mut again);
    let decoded = Cursor::decode(&again).expect("what was encoded decodes");
    // Of very many delivery runs the writer keeps the first; then nothing more is lost.
    let mut third = Vec::new();
    decoded.encode(&mut third);
    assert_eq!((again, decoded.next(), decoded.is_done(cursor.next())), (third, cursor.next(), false));
});
