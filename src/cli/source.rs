//! Messages out of lines: plain text or JSON objects.

use std::fs::File;
use std::io::{self, BufRead, BufReader, Read};
use std::path::Path;

use anyhow::{Context, Result, anyhow, bail};
use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use fanlog::record::{Attributes, Message};
use serde::Deserialize;
use serde_json::value::RawValue;

/// The longest line that is taken.
const LINE_BYTES_MAX: u64 = 64 << 20;

/// A message and the lane that it goes to, if its line says so.
#[derive(Debug, PartialEq, Eq)]
pub struct Entry {
    /// The partition.
    pub partition: Option<String>,
    /// The message.
    pub message: Message,
}

/// Which part of a line names the partition.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum PartitionField {
    /// The word at this place, from 1.
    Word(usize),
    /// The field of a JSON object; dots go deeper.
    Json(String),
}

impl PartitionField {
    /// A number is a word's place where lines are text; everything else names a JSON field.
    pub fn parse(text: &str, are_lines_text: bool) -> Result<Self> {
        match text.parse() {
            Ok(0) if are_lines_text => bail!("words are counted from 1"),
            Ok(place) if are_lines_text => Ok(Self::Word(place)),
            _ => Ok(Self::Json(text.to_owned())),
        }
    }

    fn of(&self, payload: &[u8]) -> Result<String> {
        match self {
            Self::Word(place) => {
                let text = std::str::from_utf8(payload).context("line is not UTF-8")?;
                let word = text.split_whitespace().nth(place - 1);
                word.map(str::to_owned).with_context(|| format!("line has no word {place}"))
            }
            Self::Json(path) => {
                let value: serde_json::Value = serde_json::from_slice(payload).context("payload is not JSON")?;
                let field = path.split('.').try_fold(&value, |value, name| value.get(name));
                match field {
                    Some(serde_json::Value::String(text)) => Ok(text.clone()),
                    Some(value @ (serde_json::Value::Number(_) | serde_json::Value::Bool(_))) => Ok(value.to_string()),
                    Some(_) => bail!("field {path:?} is neither text nor number"),
                    None => bail!("payload has no field {path:?}"),
                }
            }
        }
    }
}

/// How lines become messages.
#[derive(Debug, Clone)]
pub struct Parser {
    /// Whether each line is an object of ours and not a payload.
    pub is_ndjson: bool,
    /// Which part names the partition.
    pub partition_field: Option<PartitionField>,
    /// Attributes of every message; those of a line win.
    pub attributes: Attributes,
}

/// A line of `--ndjson`. What `fanlog pop` and `fanlog tail` print is taken back; what only they know is passed over.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Line<'a> {
    #[serde(borrow)]
    payload: Option<&'a RawValue>,
    #[serde(borrow)]
    data: Option<&'a RawValue>,
    payload_base64: Option<String>,
    partition: Option<String>,
    #[serde(alias = "transactionId")]
    transaction_id: Option<String>,
    attributes: Option<Attributes>,
    #[serde(rename = "queue")]
    _queue: Option<serde::de::IgnoredAny>,
    #[serde(rename = "partition_id", alias = "partitionId")]
    _partition_id: Option<serde::de::IgnoredAny>,
    #[serde(rename = "offset")]
    _offset: Option<serde::de::IgnoredAny>,
    #[serde(rename = "created_at", alias = "createdAt")]
    _created_at: Option<serde::de::IgnoredAny>,
    #[serde(rename = "delivery_count")]
    _delivery_count: Option<serde::de::IgnoredAny>,
    #[serde(rename = "last_error")]
    _last_error: Option<serde::de::IgnoredAny>,
    #[serde(rename = "lease_id", alias = "leaseId")]
    _lease_id: Option<serde::de::IgnoredAny>,
}

impl Parser {
    /// The message of a line, without its line end.
    pub fn parse(&self, line: Vec<u8>) -> Result<Entry> {
        let mut entry = if self.is_ndjson { self.parse_object(&line)? } else { self.text_entry(line) };
        if entry.partition.is_none()
            && let Some(field) = &self.partition_field
        {
            entry.partition = Some(field.of(&entry.message.payload)?);
        }
        Ok(entry)
    }

    fn text_entry(&self, line: Vec<u8>) -> Entry {
        let message = Message { attributes: self.attributes.clone(), ..Message::new(line) };
        Entry { partition: None, message }
    }

    fn parse_object(&self, line: &[u8]) -> Result<Entry> {
        let line: Line<'_> = serde_json::from_slice(line)?;
        let payload = match (line.payload.or(line.data), line.payload_base64) {
            (Some(_), Some(_)) => bail!("object has both a payload and a payload_base64"),
            (Some(raw), None) => payload_of(raw)?,
            (None, Some(encoded)) => BASE64_STANDARD.decode(encoded).context("payload_base64 is not base64")?,
            (None, None) => bail!("object has no payload and no data"),
        };
        let mut attributes = self.attributes.clone();
        for (key, value) in line.attributes.iter().flat_map(Attributes::iter) {
            attributes = with(&attributes, key, value.to_owned())?;
        }
        let message = Message { transaction_id: line.transaction_id, attributes, payload: payload.into() };
        Ok(Entry { partition: line.partition, message })
    }
}

/// The set with this pair added or replaced.
fn with(attributes: &Attributes, key: &str, value: fanlog::record::Value) -> Result<Attributes> {
    let mut all = Attributes::new();
    for (other, value) in attributes.iter().filter(|(other, _)| *other != key) {
        all.insert(other, value.to_owned())?;
    }
    all.insert(key, value)?;
    Ok(all)
}

/// A JSON text gives its characters, anything else its JSON.
fn payload_of(raw: &RawValue) -> Result<Vec<u8>> {
    if raw.get().starts_with('"') {
        return Ok(serde_json::from_str::<String>(raw.get())?.into_bytes());
    }
    Ok(raw.get().as_bytes().to_vec())
}

/// Attributes from `key=value` and `key:=number` words.
pub fn parse_attributes(words: &[String]) -> Result<Attributes> {
    let mut attributes = Attributes::new();
    for word in words {
        let (key, value) = Attributes::parse_argument(word)?;
        attributes.insert(&key, value)?;
    }
    Ok(attributes)
}

/// Lines of a file or, with `-`, of standard input.
pub struct Lines {
    input: BufReader<Box<dyn Read + Send>>,
    number: u64,
    /// Bytes of the file; `None` where nobody knows.
    pub length: Option<u64>,
}

impl Lines {
    /// Opens the file.
    pub fn open(path: &Path) -> Result<Self> {
        if path == Path::new("-") {
            return Ok(Self::new(Box::new(io::stdin()), None));
        }
        let file = File::open(path).with_context(|| format!("cannot open {}", path.display()))?;
        let length = file.metadata().ok().filter(|metadata| metadata.is_file()).map(|metadata| metadata.len());
        Ok(Self::new(Box::new(file), length))
    }

    fn new(input: Box<dyn Read + Send>, length: Option<u64>) -> Self {
        Self { input: BufReader::with_capacity(1 << 20, input), number: 0, length }
    }

    /// Whether the next line is not here yet and may have to be waited for.
    pub fn would_block(&self) -> bool {
        !self.input.buffer().contains(&b'\n')
    }

    /// The next line without its end, with its number from 1 and the bytes it takes.
    pub fn next(&mut self) -> Result<Option<(u64, Vec<u8>, usize)>> {
        let mut line = Vec::new();
        let read = self.input.by_ref().take(LINE_BYTES_MAX).read_until(b'\n', &mut line)?;
        if read == 0 {
            return Ok(None);
        }
        self.number += 1;
        match line.last() {
            Some(b'\n') => drop(line.pop()),
            _ if read as u64 == LINE_BYTES_MAX => {
                return Err(anyhow!("line {} is over {LINE_BYTES_MAX} bytes long", self.number));
            }
            _ => (),
        }
        Ok(Some((self.number, line, read)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parser(is_ndjson: bool, field: Option<&str>) -> Parser {
        let partition_field = field.map(|field| PartitionField::parse(field, !is_ndjson).unwrap());
        Parser { is_ndjson, partition_field, attributes: parse_attributes(&["a=1".into()]).unwrap() }
    }

    #[test]
    fn words_and_fields_name_the_lane() {
        let line = b"2026-09-22 04:51:30 upgrade libc6:amd64 2.36 2.36".to_vec();
        let entry = parser(false, Some("4")).parse(line.clone()).unwrap();
        assert_eq!(entry.partition.as_deref(), Some("libc6:amd64"));
        assert_eq!(entry.message.payload, line);
        let error = parser(false, Some("9")).parse(line).unwrap_err();
        assert_eq!(error.to_string(), "line has no word 9");
        let entry = parser(false, Some("user.id")).parse(br#"{"user":{"id":42}}"#.to_vec()).unwrap();
        assert_eq!(entry.partition.as_deref(), Some("42"));
        assert!(parser(false, Some("user")).parse(br#"{"user":{"id":42}}"#.to_vec()).is_err());
        assert!(PartitionField::parse("0", true).is_err());
    }

    #[test]
    fn objects_carry_payload_lane_id_and_attributes() {
        let line = br#"{"data":{"n":1.50},"partition":"p","transactionId":"t","attributes":{"a":2,"b":"x"}}"#;
        let entry = parser(true, None).parse(line.to_vec()).unwrap();
        assert_eq!(entry.partition.as_deref(), Some("p"));
        assert_eq!(entry.message.transaction_id.as_deref(), Some("t"));
        assert_eq!(&entry.message.payload[..], br#"{"n":1.50}"#, "digits stay as they are");
        assert_eq!(entry.message.attributes.to_json(), r#"{"a":2,"b":"x"}"#);
        let text = parser(true, None).parse(br#"{"payload":"a\nb"}"#.to_vec()).unwrap();
        assert_eq!(&text.message.payload[..], b"a\nb");
        let bytes = parser(true, None).parse(br#"{"payload_base64":"/wA="}"#.to_vec()).unwrap();
        assert_eq!(&bytes.message.payload[..], [0xff, 0]);
        let printed =
            br#"{"queue":"q","partition":"p","partition_id":1,"offset":2,"created_at":"x","attributes":{},"payload":"y"}"#;
        assert!(parser(true, None).parse(printed.to_vec()).is_ok(), "what pop prints is taken back");
        for line in ["{}", "[]", "{\"payload\":\"a\",\"partiton\":\"p\"}", "{\"payload\":1,\"payload_base64\":\"\"}", ""] {
            assert!(parser(true, None).parse(line.into()).is_err(), "{line}");
        }
    }

    #[test]
    fn lines_lose_their_end_and_nothing_else() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("lines");
        std::fs::write(&path, b"a\r\n\n b").unwrap();
        let mut lines = Lines::open(&path).unwrap();
        let all: Vec<_> = std::iter::from_fn(|| lines.next().unwrap()).collect();
        assert_eq!(all, [(1, b"a\r".to_vec(), 3), (2, Vec::new(), 1), (3, b" b".to_vec(), 2)]);
        assert_eq!(lines.length, Some(6));
    }
}
