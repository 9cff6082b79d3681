//! Exit codes: 0 is done, 1 a mistake of the user, 2 a fault of the server or no server at all.

use std::fmt;
use std::io;

use fanlog::client::{self, ErrorKind};
use fanlog::model::ErrorCode;

/// Done.
pub const EXIT_DONE: u8 = 0;
/// The request makes no sense; nothing was changed by it.
pub const EXIT_USER: u8 = 1;
/// The server failed or cannot be reached.
pub const EXIT_SERVER: u8 = 2;

/// Marks an error as the server's, where its type does not say so.
#[derive(Debug)]
pub struct ServerFault(pub String);

impl fmt::Display for ServerFault {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(&self.0)
    }
}

impl std::error::Error for ServerFault {}

/// The code for an error. A reader of our output that went away is no failure.
pub fn code_of(error: &anyhow::Error) -> u8 {
    if is_broken_pipe(error) {
        return EXIT_DONE;
    }
    if error.downcast_ref::<ServerFault>().is_some() {
        return EXIT_SERVER;
    }
    if let Some(error) = error.downcast_ref::<client::Error>() {
        return code_of_client(error.kind(), error.code());
    }
    match error.downcast_ref::<fanlog::model::Error>() {
        Some(error) => code_of_client(ErrorKind::Refused, Some(error.code)),
        None => EXIT_USER,
    }
}

/// Whether it is only that nobody reads our output any more.
pub fn is_broken_pipe(error: &anyhow::Error) -> bool {
    error.chain().any(|cause| cause.downcast_ref::<io::Error>().is_some_and(|error| error.kind() == io::ErrorKind::BrokenPipe))
}

fn code_of_client(kind: ErrorKind, code: Option<ErrorCode>) -> u8 {
    use ErrorCode::*;
    match (kind, code) {
        (ErrorKind::BadAddress | ErrorKind::TooLarge | ErrorKind::Full, _) => EXIT_USER,
        (
            _,
            Some(
                Internal | Busy | ShuttingDown | Timeout | UnsupportedVersion | Corrupt | DiskFull | Io | Poisoned | BadDirectory
                | DirectoryInUse | NewerFormat | NotOwner | Fenced,
            ),
        ) => EXIT_SERVER,
        (_, Some(_)) => EXIT_USER,
        (_, None) => EXIT_SERVER,
    }
}

#[cfg(test)]
mod tests {
    use anyhow::Context;

    use super::*;

    #[test]
    fn codes_follow_who_can_do_something_about_it() {
        let pipe = anyhow::Error::from(io::Error::from(io::ErrorKind::BrokenPipe)).context("while printing");
        assert_eq!(code_of(&pipe), EXIT_DONE);
        assert_eq!(code_of(&anyhow::anyhow!("no such flag")), EXIT_USER);
        let fault: anyhow::Result<()> = Err(anyhow::anyhow!("cause"));
        assert_eq!(code_of(&fault.context(ServerFault("cannot start".into())).unwrap_err()), EXIT_SERVER);
        assert_eq!(code_of_client(ErrorKind::Refused, Some(ErrorCode::UnknownQueue)), EXIT_USER);
        assert_eq!(code_of_client(ErrorKind::Refused, Some(ErrorCode::DiskFull)), EXIT_SERVER);
        assert_eq!(code_of_client(ErrorKind::Connect, None), EXIT_SERVER);
        assert_eq!(code_of_client(ErrorKind::BadAddress, None), EXIT_USER);
    }
}
