//! Results on standard output: a table for people, JSON for programs. Nothing else is ever written there.

use std::io::{self, BufWriter, IsTerminal, Stdout, Write};

use anyhow::Result;
use comfy_table::{CellAlignment, ContentArrangement, Table, presets};
use serde::Serialize;
use serde_json::Value;

/// How results are written.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum Format {
    /// Columns for people.
    Table,
    /// One JSON document.
    Json,
    /// One JSON document for each row, each on a line of its own.
    Ndjson,
}

impl Format {
    /// A table on a terminal, JSON in a pipe.
    pub fn fitting() -> Self {
        if io::stdout().is_terminal() { Self::Table } else { Self::Json }
    }
}

/// Writes results.
pub struct Output<W: Write = BufWriter<Stdout>> {
    format: Format,
    writer: W,
    is_terminal: bool,
}

impl Output {
    /// On standard output.
    pub fn stdout(format: Format) -> Self {
        Self { format, writer: BufWriter::new(io::stdout()), is_terminal: io::stdout().is_terminal() }
    }
}

impl<W: Write> Output<W> {
    /// How results are written.
    pub fn format(&self) -> Format {
        self.format
    }

    /// A list: its rows, of which a table shows `columns`.
    pub fn list<T: Serialize>(&mut self, columns: &[&str], rows: &[T]) -> Result<()> {
        match self.format {
            Format::Table => self.table(columns, rows)?,
            Format::Json => self.json(&rows)?,
            Format::Ndjson => rows.iter().try_for_each(|row| self.line(row))?,
        }
        self.flush()
    }

    /// One thing with all its fields.
    pub fn object<T: Serialize>(&mut self, object: &T) -> Result<()> {
        match self.format {
            Format::Table => self.fields(&serde_json::to_value(object)?)?,
            Format::Json => self.json(object)?,
            Format::Ndjson => self.line(object)?,
        }
        self.flush()
    }

    /// A row of a stream, which has no end to wait for: a line in every format. `text` is the one for people.
    pub fn event<T: Serialize>(&mut self, event: &T, text: impl FnOnce(&T) -> String) -> Result<()> {
        match self.format {
            Format::Table => {
                let text = self.printable(text(event));
                writeln!(self.writer, "{text}")?;
            }
            Format::Json | Format::Ndjson => self.line(event)?,
        }
        Ok(())
    }

    /// Text that has no other form.
    pub fn text(&mut self, text: &str) -> Result<()> {
        self.writer.write_all(text.as_bytes())?;
        self.flush()
    }

    /// Hands everything to the operating system.
    pub fn flush(&mut self) -> Result<()> {
        Ok(self.writer.flush()?)
    }

    fn json<T: Serialize>(&mut self, value: &T) -> Result<()> {
        serde_json::to_writer_pretty(&mut self.writer, value).map_err(io::Error::from)?;
        Ok(writeln!(self.writer)?)
    }

    fn line<T: Serialize>(&mut self, value: &T) -> Result<()> {
        serde_json::to_writer(&mut self.writer, value).map_err(io::Error::from)?;
        Ok(writeln!(self.writer)?)
    }

    fn table<T: Serialize>(&mut self, columns: &[&str], rows: &[T]) -> Result<()> {
        let mut table = self.empty_table();
        table.set_header(columns.iter().map(|column| column.replace('_', " ").to_uppercase()));
        let mut is_number = vec![true; columns.len()];
        for row in rows {
            let row = serde_json::to_value(row)?;
            let cells = columns.iter().map(|column| row.get(column).unwrap_or(&Value::Null));
            for (flag, cell) in is_number.iter_mut().zip(cells.clone()) {
                *flag &= matches!(cell, Value::Number(_) | Value::Null);
            }
            table.add_row(cells.map(|cell| self.printable(show(cell))));
        }
        for (index, is_number) in is_number.into_iter().enumerate() {
            if let Some(column) = table.column_mut(index)
                && is_number
            {
                column.set_cell_alignment(CellAlignment::Right);
            }
        }
        self.print(&table)
    }

    fn fields(&mut self, value: &Value) -> Result<()> {
        let mut table = self.empty_table();
        let mut rows = Vec::new();
        add_fields(&mut rows, "", value);
        for (name, value) in rows {
            table.add_row([self.printable(name), self.printable(value)]);
        }
        self.print(&table)
    }

    /// Without what a terminal would obey instead of showing it: producers write texts, operators read them.
    fn printable(&self, text: String) -> String {
        let is_obeyed = |character: char| {
            let turns_text_round = matches!(character, '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}');
            character.is_control() && !matches!(character, '\n' | '\t') || turns_text_round
        };
        if !self.is_terminal || !text.contains(is_obeyed) {
            return text;
        }
        let mut shown = String::with_capacity(text.len());
        for character in text.chars() {
            match character {
                character if is_obeyed(character) => shown.extend(character.escape_default()),
                character => shown.push(character),
            }
        }
        shown
    }

    fn empty_table(&self) -> Table {
        let mut table = Table::new();
        table.load_style(presets::NOTHING);
        if self.is_terminal {
            table.set_content_arrangement(ContentArrangement::Dynamic);
        }
        table
    }

    fn print(&mut self, table: &Table) -> Result<()> {
        for line in table.lines() {
            writeln!(self.writer, "{}", line.trim_end())?;
        }
        Ok(())
    }
}

fn add_fields(rows: &mut Vec<(String, String)>, prefix: &str, value: &Value) {
    let Value::Object(fields) = value else {
        rows.push((prefix.to_owned(), show(value)));
        return;
    };
    for (name, value) in fields {
        let name = if prefix.is_empty() { name.clone() } else { format!("{prefix}.{name}") };
        add_fields(rows, &name, value);
    }
}

/// A value in a cell.
fn show(value: &Value) -> String {
    match value {
        Value::Null => "-".to_owned(),
        Value::String(text) => text.clone(),
        value => value.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Serialize)]
    struct Row {
        name: &'static str,
        lag: u64,
        since: Option<u64>,
    }

    const ROWS: [Row; 2] = [Row { name: "audit", lag: 1234, since: None }, Row { name: "b", lag: 5, since: Some(7) }];

    fn written(format: Format, write: impl FnOnce(&mut Output<Vec<u8>>)) -> String {
        let mut output = Output { format, writer: Vec::new(), is_terminal: false };
        write(&mut output);
        String::from_utf8(output.writer).unwrap()
    }

    /// Whoever may push used to reach the terminal of whoever looked: its title, its colours, what stood there before.
    #[test]
    fn a_terminal_is_not_told_what_to_do_and_a_file_gets_the_text_as_it_is() {
        let (evil, shown) = ("a\u{1b}]0;title\u{7}\u{9b}2J\r\u{202e}\tb\nc", "a\\u{1b}]0;title\\u{7}\\u{9b}2J\\r\\u{202e}\tb\nc");
        for (is_terminal, expected) in [(true, shown), (false, evil)] {
            let mut output = Output { format: Format::Table, writer: Vec::new(), is_terminal };
            output.event(&evil, |evil| (*evil).to_owned()).unwrap();
            assert_eq!(String::from_utf8(output.writer).unwrap(), format!("{expected}\n"));
            let mut output = Output { format: Format::Table, writer: Vec::new(), is_terminal };
            output.list(&["name"], &[serde_json::json!({ "name": evil })]).unwrap();
            output.object(&serde_json::json!({ "text": evil, (evil): [evil] })).unwrap();
            let written = String::from_utf8(output.writer).unwrap();
            assert_eq!(written.contains(['\u{1b}', '\u{7}', '\u{9b}', '\r', '\u{202e}']), !is_terminal, "{written:?}");
        }
    }

    #[test]
    fn a_list_is_a_table_a_document_or_lines() {
        let list = |format| written(format, |output| output.list(&["name", "lag"], &ROWS).unwrap());
        assert_eq!(list(Format::Table), " NAME    LAG\n audit  1234\n b         5\n");
        assert_eq!(
            list(Format::Ndjson),
            "{\"name\":\"audit\",\"lag\":1234,\"since\":null}\n{\"name\":\"b\",\"lag\":5,\"since\":7}\n"
        );
        let document: Vec<Value> = serde_json::from_str(&list(Format::Json)).unwrap();
        assert_eq!(document.len(), 2);
    }

    #[test]
    fn an_object_shows_its_fields_in_order() {
        assert_eq!(written(Format::Table, |output| output.object(&ROWS[1]).unwrap()), " name   b\n lag    5\n since  7\n");
        let empty: [Row; 0] = [];
        assert_eq!(written(Format::Json, |output| output.list(&["name"], &empty).unwrap()), "[]\n");
    }
}
