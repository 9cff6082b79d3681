//! What filters are measured with.

/// Attributes of a message.
pub const ATTRIBUTES: &str = r#"{"age":40.5,"location":"Chicago","name":"Bob","region":"us-ashburn-1","team":"exec-expenses"}"#;

/// Seven of them take it.
pub const FILTERS: [&str; 10] = [
    ":region",
    "NOT :priority",
    r#":team = "exec-expenses""#,
    r#":region != "eu-frankfurt-1""#,
    r#"hasPrefix(:region, "us-")"#,
    r#"hasSuffix(:name, "ob")"#,
    ":age >= 40",
    r#":name = "Bob" AND :age = 40"#,
    r#":name = "Alice" OR :age < 18 OR :location = "Boston""#,
    r#":name = "Bob" AND NOT (:age > 40 OR :location = "Chicago")"#,
];
