//! The filter language, sentence by sentence of its document, then the decisions where the document is silent.
#![expect(clippy::unwrap_used, reason = "a test may fail")]

use fanlog::filter::{Expected, Filter, FilterError, Reason};
use fanlog::record::Attributes;

fn attributes(json: &str) -> Attributes {
    Attributes::from_json(json).unwrap()
}

fn takes(filter: &str, json: &str) -> bool {
    let filter = Filter::parse(filter).unwrap_or_else(|error| panic!("{filter}: {error}"));
    let attributes = attributes(json);
    let matches = filter.matches(attributes.view());
    assert_eq!(filter.why(attributes.view()).matches, matches, "{filter} {json}");
    let again = Filter::parse(&filter.to_string()).unwrap();
    assert_eq!(again, filter);
    assert_eq!(again.matches(attributes.view()), matches, "{filter} {json}");
    matches
}

/// A sentence, a filter, attributes it takes and attributes it refuses.
type Row = (&'static str, &'static str, &'static [&'static str], &'static [&'static str]);

fn check_rows(rows: &[Row]) {
    for (sentence, filter, taken, refused) in rows {
        for json in *taken {
            assert!(takes(filter, json), "{sentence}: {filter} takes {json}");
        }
        for json in *refused {
            assert!(!takes(filter, json), "{sentence}: {filter} refuses {json}");
        }
    }
}

#[test]
fn every_sentence_of_the_document_holds() {
    check_rows(&[
        ("a group receives all messages if its filter is empty", "", &["{}", r#"{"a":1}"#], &[]),
        (
            "the executive expenses team gets messages with its team attribute",
            r#":team = "exec-expenses""#,
            &[r#"{"team":"exec-expenses"}"#, r#"{"team":"exec-expenses","amount":12.5}"#],
            &["{}", r#"{"team":"compliance"}"#, r#"{"team":"exec-expenses "}"#],
        ),
        ("attribute keys are case-sensitive", ":Region", &[r#"{"Region":"x"}"#], &[r#"{"region":"x"}"#]),
        (
            "attribute values are case-sensitive",
            r#":region = "us-ashburn-1""#,
            &[r#"{"region":"us-ashburn-1"}"#],
            &[r#"{"region":"US-ASHBURN-1"}"#],
        ),
        (
            "filter expressions are case-sensitive",
            r#":region = "US-ASHBURN-1""#,
            &[r#"{"region":"US-ASHBURN-1"}"#],
            &[r#"{"region":"us-ashburn-1"}"#],
        ),
        ("a value may be a utf-8 string", r#":city = "Zürich 東京""#, &[r#"{"city":"Zürich 東京"}"#], &[r#"{"city":"Zurich"}"#]),
        ("a value may be an integer or a decimal", ":n = 1.5", &[r#"{"n":1.5}"#], &[r#"{"n":1}"#, r#"{"n":2}"#]),
        (
            "a key may start with an underscore and have letters, numbers, hyphens and underscores",
            ":_a-1_B = 1",
            &[r#"{"_a-1_B":1}"#],
            &[r#"{"_a":1}"#],
        ),
        (
            ":region matches messages that have it set, no matter what its value is",
            ":region",
            &[r#"{"region":"us"}"#, r#"{"region":""}"#, r#"{"region":0}"#, r#"{"region":-1.5}"#],
            &["{}", r#"{"other":"region"}"#],
        ),
        ("NOT :region matches messages that don't have it", "NOT :region", &["{}", r#"{"a":1}"#], &[r#"{"region":""}"#]),
        (
            ":name = \"Bob\" matches where it is exactly Bob",
            r#":name = "Bob""#,
            &[r#"{"name":"Bob"}"#],
            &[r#"{"name":"bob"}"#, r#"{"name":"Bobby"}"#, r#"{"name":" Bob"}"#, "{}"],
        ),
        (
            ":name != \"Bob\" matches where it isn't Bob",
            r#":name != "Bob""#,
            &[r#"{"name":"Alice"}"#, r#"{"name":""}"#, r#"{"name":7}"#, "{}"],
            &[r#"{"name":"Bob"}"#],
        ),
        (
            "hasPrefix matches where it starts with Bo",
            r#"hasPrefix(:name, "Bo")"#,
            &[r#"{"name":"Bob"}"#, r#"{"name":"Bo"}"#],
            &[r#"{"name":"B"}"#, r#"{"name":"bob"}"#, r#"{"name":"ABob"}"#, "{}"],
        ),
        (
            "hasSuffix matches where it ends with ob",
            r#"hasSuffix(:name, "ob")"#,
            &[r#"{"name":"Bob"}"#, r#"{"name":"ob"}"#],
            &[r#"{"name":"b"}"#, r#"{"name":"BOB"}"#, r#"{"name":"Bobby"}"#, "{}"],
        ),
        (
            "NOT hasPrefix matches where it doesn't start with Bo",
            r#"NOT hasPrefix(:name, "Bo")"#,
            &[r#"{"name":"Alice"}"#, "{}"],
            &[r#"{"name":"Bob"}"#],
        ),
        (":age = 40", ":age = 40", &[r#"{"age":40}"#], &[r#"{"age":41}"#, r#"{"age":40.1}"#, "{}"]),
        (":age != 40", ":age != 40", &[r#"{"age":41}"#, "{}"], &[r#"{"age":40}"#]),
        (":age > 40", ":age > 40", &[r#"{"age":40.01}"#, r#"{"age":400}"#], &[r#"{"age":40}"#, r#"{"age":9}"#, "{}"]),
        (":age >= 40", ":age >= 40", &[r#"{"age":40}"#, r#"{"age":41}"#], &[r#"{"age":39.99}"#, "{}"]),
        (":age < 40", ":age < 40", &[r#"{"age":39.99}"#, r#"{"age":-41}"#], &[r#"{"age":40}"#, "{}"]),
        (":age <= 40", ":age <= 40", &[r#"{"age":40}"#, r#"{"age":0}"#], &[r#"{"age":40.01}"#, "{}"]),
        (
            "parentheses take highest precedence, followed by NOT, then AND, then OR",
            ":a OR :b AND NOT :c",
            &[r#"{"a":1,"c":1}"#, r#"{"b":1}"#, r#"{"a":1}"#],
            &[r#"{"b":1,"c":1}"#, "{}"],
        ),
        ("parentheses come first", "(:a OR :b) AND NOT :c", &[r#"{"a":1}"#, r#"{"b":1}"#], &[r#"{"a":1,"c":1}"#, "{}"]),
        (
            "Bob and 40",
            r#":name = "Bob" AND :age = 40"#,
            &[r#"{"name":"Bob","age":40}"#],
            &[r#"{"name":"Bob"}"#, r#"{"age":40}"#, r#"{"name":"Bob","age":41}"#],
        ),
        (
            "Bob or 40",
            r#":name = "Bob" OR :age = 40"#,
            &[r#"{"name":"Bob"}"#, r#"{"age":40}"#, r#"{"name":"Bob","age":40}"#],
            &["{}", r#"{"name":"Al","age":41}"#],
        ),
        (
            "Bob and there isn't any age",
            r#":name = "Bob" AND NOT :age"#,
            &[r#"{"name":"Bob"}"#],
            &[r#"{"name":"Bob","age":0}"#, "{}"],
        ),
        (
            "the complex example, by its operators",
            r#":name = "Bob" AND NOT (:age > 40 OR :location = "Chicago")"#,
            &[r#"{"name":"Bob","age":40,"location":"Boston"}"#, r#"{"name":"Bob"}"#],
            &[
                r#"{"name":"Bob","age":30,"location":"Chicago"}"#,
                r#"{"name":"Bob","age":50,"location":"Boston"}"#,
                r#"{"name":"Al","age":30,"location":"Boston"}"#,
            ],
        ),
        (
            "a key that doesn't follow the rules is quoted in the filter",
            r#":"first name/2" = "Bob" AND :"1st""#,
            &[r#"{"first name/2":"Bob","1st":0}"#],
            &[r#"{"first name/2":"Bob"}"#],
        ),
    ]);
}

#[test]
fn every_decision_holds() {
    check_rows(&[
        ("a missing key is not unequal by accident", r#":name AND :name != "Bob""#, &[r#"{"name":"Al"}"#], &["{}"]),
        ("NOT of an order comparison takes a missing key", "NOT :age > 40", &["{}", r#"{"age":40}"#], &[r#"{"age":41}"#]),
        ("a string is no number", ":age > 40", &[], &[r#"{"age":"41"}"#]),
        ("a string is no number, also not below", ":age <= 40", &[], &[r#"{"age":"39"}"#]),
        ("a number is no string", r#":name = "40""#, &[r#"{"name":"40"}"#], &[r#"{"name":40}"#]),
        ("other types are unequal", ":name != 40", &[r#"{"name":"40"}"#, r#"{"name":41}"#], &[r#"{"name":40.0}"#]),
        (
            "numbers are equal by value",
            ":n = 1",
            &[r#"{"n":1}"#, r#"{"n":1.0}"#, r#"{"n":1e0}"#, r#"{"n":10E-1}"#, r#"{"n":0.1e+1}"#],
            &[r#"{"n":1.0000000000000000000000000000000000001}"#],
        ),
        ("minus zero is zero", ":n = 0", &[r#"{"n":-0}"#, r#"{"n":0.00}"#, r#"{"n":-0e5}"#], &[r#"{"n":1e-9999}"#]),
        ("minus zero is zero in a filter", ":n = -0", &[r#"{"n":0}"#], &[]),
        (
            "2^53 + 1 is not 2^53",
            ":n = 9007199254740993",
            &[r#"{"n":9007199254740993}"#],
            &[r#"{"n":9007199254740992}"#, r#"{"n":9007199254740994}"#],
        ),
        (
            "38 digits compare exactly",
            ":n > 99999999999999999999999999999999999998",
            &[r#"{"n":99999999999999999999999999999999999999}"#, r#"{"n":1e38}"#],
            &[r#"{"n":99999999999999999999999999999999999998}"#],
        ),
        ("0.1 + 0.2 is 0.3", ":n = 0.3", &[r#"{"n":0.3}"#], &[r#"{"n":0.30000000000000004}"#]),
        ("leading zeros are decimal", ":n = 0040.50", &[r#"{"n":40.5}"#], &[r#"{"n":32.5}"#]),
        ("negative numbers are in order", ":n > -2", &[r#"{"n":-1.5}"#, r#"{"n":0}"#], &[r#"{"n":-2}"#, r#"{"n":-20}"#]),
        ("escapes", r#":q = "a\"b\\c""#, &[r#"{"q":"a\"b\\c"}"#], &[r#"{"q":"a\\\"b\\\\c"}"#]),
        ("a single quote is a character of a text", r#":q = "it's""#, &[r#"{"q":"it's"}"#], &[]),
        ("raw newline and tab", ":q = \"a\n\tb\"", &[r#"{"q":"a\n\tb"}"#], &[r#"{"q":"a b"}"#]),
        ("quoting a plain key changes nothing", r#":"age" > 40"#, &[r#"{"age":41}"#], &[r#"{"age":40}"#]),
        ("quoted keys have escapes, also in functions", r#"hasPrefix(:"a\"b\\", "x")"#, &[r#"{"a\"b\\":"xy"}"#], &[]),
        (
            "after a colon every word is a key",
            ":AND AND :NOT OR :hasPrefix",
            &[r#"{"AND":1,"NOT":1}"#, r#"{"hasPrefix":1}"#],
            &[],
        ),
        ("a key keeps its hyphen", ":a-1", &[r#"{"a-1":1}"#], &[r#"{"a":1}"#]),
        ("no space is needed around operators", ":age>=40 AND:b", &[r#"{"age":40,"b":1}"#], &["{}"]),
        ("nor around parentheses", "NOT(:a)AND(:b)", &[r#"{"b":1}"#], &[r#"{"a":1,"b":1}"#]),
        ("nor before a colon", "NOT:a OR:b", &["{}", r#"{"a":1,"b":1}"#], &[r#"{"a":1}"#]),
        ("tab, CR and LF are spaces", "\t:a\r\n=\t1 ", &[r#"{"a":1}"#], &["{}"]),
        ("white space alone is the empty filter", " \t\r\n", &["{}"], &[]),
        ("NOT takes the next whole condition", r#"NOT :a = "x" AND :b"#, &[r#"{"b":1}"#], &[r#"{"a":"x","b":1}"#, "{}"]),
        ("NOT NOT", "NOT NOT :a", &[r#"{"a":1}"#], &["{}"]),
        ("an absent key in one branch of OR drops nothing", r#":x > 1 OR :y = "b""#, &[r#"{"y":"b"}"#], &[]),
        (
            "the empty text starts and ends every string",
            r#"hasPrefix(:a,"")AND hasSuffix(:a,"")"#,
            &[r#"{"a":""}"#],
            &[r#"{"a":1}"#, "{}"],
        ),
        ("functions are false on numbers", r#"hasPrefix(:a, "4")"#, &[r#"{"a":"40"}"#], &[r#"{"a":40}"#]),
        ("no normalisation", ":a = \"e\u{301}\"", &["{\"a\":\"e\u{301}\"}"], &["{\"a\":\"\u{e9}\"}"]),
        ("prefixes are of code points", ":a AND hasPrefix(:a, \"\u{e9}\")", &["{\"a\":\"\u{e9}t\"}"], &["{\"a\":\"\u{e8}t\"}"]),
        ("a key may be of any text", ":\"日本 :=\" = 1", &[r#"{"日本 :=":1}"#], &["{}"]),
    ]);
}

#[test]
fn depth_and_length_are_used_to_the_end() {
    let nested = format!("{}:a{}", "(".repeat(127), ")".repeat(127));
    assert_eq!(nested.chars().count(), 256);
    assert!(takes(&nested, r#"{"a":1}"#) && !takes(&nested, "{}"));
    assert_eq!(Filter::parse(&nested).unwrap().to_string(), ":a");
    let negated = format!("{}:a", "NOT ".repeat(63));
    assert!(takes(&negated, "{}"));
    let nested = format!("{}:a{}", "(:b OR(:c AND".repeat(15), "))".repeat(15));
    assert!(takes(&nested, r#"{"b":1}"#) && !takes(&nested, r#"{"c":1}"#));
    // With spaces the canonical text of this one would be too long to be parsed.
    let packed = format!(":a{}", " OR:b>1".repeat(36));
    let filter = Filter::parse(&packed).unwrap();
    assert_eq!(filter.to_string(), packed);
    assert!(filter.parenthesised().chars().count() > 256);
    let wide = format!(":a = \"{}\"", "東".repeat(249));
    assert_eq!(wide.chars().count(), 256);
    assert!(takes(&wide, &format!(r#"{{"a":"{}"}}"#, "東".repeat(249))));
    let spaces = format!(":a{}", " ".repeat(254));
    assert!(Filter::parse(&spaces).is_ok());
    let too_long = FilterError { position: 256, reason: Reason::TooLong { length: 257 } };
    assert_eq!(Filter::parse(&format!("{spaces} ")), Err(too_long.clone()));
    assert_eq!(Filter::parse(&" ".repeat(257)), Err(too_long));
}

#[test]
fn a_number_of_a_filter_has_as_many_digits_as_fit() {
    let filter = format!(":a > 0.{}1", "0".repeat(200));
    assert!(takes(&filter, r#"{"a":1e-200}"#) && !takes(&filter, r#"{"a":1e-201}"#));
}

#[test]
fn the_canonical_text_is_short_and_has_the_fewest_parentheses() {
    for (text, expected) in [
        ("((:a)AND((:b)))OR(:c)", ":a AND :b OR :c"),
        (":a AND(:b AND :c)OR(:d OR :e)", ":a AND :b AND :c OR :d OR :e"),
        ("(:a OR :b)AND NOT(:c AND :d)", "(:a OR :b) AND NOT (:c AND :d)"),
        ("NOT(NOT(:a=1))", "NOT NOT :a = 1"),
        (r#":"plain"="x" OR :"not plain""#, r#":plain = "x" OR :"not plain""#),
        (":a=-00.50 OR:b>=1.0", ":a = -0.5 OR :b >= 1"),
        (r#"hasSuffix  ( :"a b" ,"\"\\" )"#, r#"hasSuffix(:"a b", "\"\\")"#),
        ("  ", ""),
    ] {
        let filter = Filter::parse(text).unwrap();
        assert_eq!(filter.to_string(), expected);
        assert_eq!(Filter::parse(expected).unwrap(), filter);
    }
}

#[test]
fn what_is_outside_the_grammar_is_refused_with_position_and_reason() {
    let unsupported = |found: &str, instead| Reason::Unsupported { found: found.to_owned(), instead };
    let case = |found: &str, expected| Reason::WordCase { found: found.to_owned(), expected };
    let unknown = |found: &str| Reason::UnknownWord { found: found.to_owned() };
    let expected = |expected, found: &str| Reason::Expected { expected, found: found.to_owned() };
    let order = |operator, found: &str| Reason::OrderNeedsNumber { operator, found: found.to_owned() };
    let rows: &[(&str, usize, Reason)] = &[
        // Operators of other languages.
        (r#":name <> "Bob""#, 6, unsupported("<>", Some("!="))),
        (":age == 40", 5, unsupported("==", Some("="))),
        (":age => 40", 5, unsupported("=>", Some(">="))),
        (":age =< 40", 5, unsupported("=<", Some("<="))),
        ("!:age", 0, unsupported("!", Some("NOT"))),
        (r#":name IN ("Bob")"#, 6, unsupported("IN", None)),
        (r#":name LIKE "B%""#, 6, unsupported("LIKE", None)),
        (":name IS NULL", 6, unsupported("IS", None)),
        (":age BETWEEN 1 AND 2", 5, unsupported("BETWEEN", None)),
        (":a = NULL", 5, unsupported("NULL", None)),
        (":a = true", 5, unsupported("true", None)),
        (":a && :b", 3, Reason::UnexpectedCharacter { found: '&' }),
        (":a || :b", 3, Reason::UnexpectedCharacter { found: '|' }),
        (":a * 2 = 4", 3, Reason::UnexpectedCharacter { found: '*' }),
        (":a = :b", 5, expected(Expected::Literal, ":b")),
        (r#""Bob" = :name"#, 0, expected(Expected::Condition, "\"Bob\"")),
        ("40 < :age", 0, expected(Expected::Condition, "40")),
        (r#":age > "40""#, 7, order(">", "\"40\"")),
        (":age <= :b", 8, order("<=", ":b")),
        (":age <", 6, order("<", "the end")),
        // Words.
        (":a and :b", 3, case("and", "AND")),
        (":a Or :b", 3, case("Or", "OR")),
        ("not :a", 0, case("not", "NOT")),
        (r#"hasprefix(:a, "b")"#, 0, case("hasprefix", "hasPrefix")),
        (r#"HASSUFFIX(:a, "b")"#, 0, case("HASSUFFIX", "hasSuffix")),
        (r#"region = "us""#, 0, unknown("region")),
        (r#"contains(:a, "b")"#, 0, unknown("contains")),
        (":a ANDNOT :b", 3, unknown("ANDNOT")),
        // Texts.
        (":name = 'Bob'", 8, Reason::SingleQuote),
        (r#":name = "Bob"#, 8, Reason::StringUnclosed),
        (r#":name = ""#, 8, Reason::StringUnclosed),
        (r#":name = "Bob\"#, 8, Reason::StringUnclosed),
        (r#":name = "Bob\""#, 8, Reason::StringUnclosed),
        (r#":name = "B\nob""#, 10, Reason::UnknownEscape { found: 'n' }),
        (r#":name = "\'""#, 9, Reason::UnknownEscape { found: '\'' }),
        (r#":name = "a""b""#, 11, expected(Expected::Continuation, "\"b\"")),
        (":name = Bob", 8, unknown("Bob")),
        ("\u{201c}", 0, Reason::UnexpectedCharacter { found: '\u{201c}' }),
        // Numbers.
        (":age = 1e3", 8, Reason::Exponent),
        (":age = 1.5E+3", 10, Reason::Exponent),
        (":age = 1e-3", 8, Reason::Exponent),
        (":age = .5", 7, Reason::PointWithoutDigits),
        (":age = -.5", 8, Reason::PointWithoutDigits),
        (":age = 5.", 8, Reason::PointWithoutDigits),
        (":age = 5. ", 8, Reason::PointWithoutDigits),
        (":age = 1.2.3", 10, Reason::PointWithoutDigits),
        (":age = +1", 7, Reason::PlusSign),
        (":age = -", 7, Reason::MinusWithoutDigits),
        (":age = - 1", 7, Reason::MinusWithoutDigits),
        (":age = --1", 7, Reason::MinusWithoutDigits),
        (":age = 40AND :b", 9, Reason::WordTouchesNumber { found: 'A' }),
        (":age = 0x10", 8, Reason::WordTouchesNumber { found: 'x' }),
        (":age = 1_000", 8, Reason::WordTouchesNumber { found: '_' }),
        (":age = 1e", 8, Reason::WordTouchesNumber { found: 'e' }),
        (":age = 1,5", 8, expected(Expected::Continuation, ",")),
        (":age = 1-1", 8, expected(Expected::Continuation, "-1")),
        (":age = NaN", 7, unknown("NaN")),
        (":age = -inf", 7, Reason::MinusWithoutDigits),
        (":age = \u{661}", 7, Reason::UnexpectedCharacter { found: '\u{661}' }),
        // Keys.
        (": name", 1, Reason::KeyMissing),
        (":", 1, Reason::KeyMissing),
        ("(:)", 2, Reason::KeyMissing),
        (r#":"" = 1"#, 1, Reason::KeyEmpty),
        (":1st", 1, Reason::KeyNeedsQuotes { found: '1' }),
        (":-a", 1, Reason::KeyNeedsQuotes { found: '-' }),
        (":\u{e9}", 1, Reason::KeyNeedsQuotes { found: '\u{e9}' }),
        (":a\u{e9}", 2, Reason::UnexpectedCharacter { found: '\u{e9}' }),
        (":a.b = 1", 2, Reason::UnexpectedCharacter { found: '.' }),
        (":a/b", 2, Reason::UnexpectedCharacter { found: '/' }),
        (r#":"ab"#, 1, Reason::StringUnclosed),
        (r#":"a\b""#, 3, Reason::UnknownEscape { found: 'b' }),
        (":'a'", 1, Reason::SingleQuote),
        // Spaces.
        (":a\u{a0}= 1", 2, Reason::UnsupportedSpace { found: '\u{a0}' }),
        (":a \u{2003}", 3, Reason::UnsupportedSpace { found: '\u{2003}' }),
        ("\u{feff}:a", 0, Reason::UnsupportedSpace { found: '\u{feff}' }),
        (":a\u{200b}", 2, Reason::UnsupportedSpace { found: '\u{200b}' }),
        (":a \u{b}", 3, Reason::UnsupportedSpace { found: '\u{b}' }),
        (":\u{3000}a", 1, Reason::UnsupportedSpace { found: '\u{3000}' }),
        ("\u{a0}", 0, Reason::UnsupportedSpace { found: '\u{a0}' }),
        (":a \0", 3, Reason::UnexpectedCharacter { found: '\0' }),
        // Structure.
        (r#":a = "x" garbage"#, 9, unknown("garbage")),
        (":a :b", 3, expected(Expected::Continuation, ":b")),
        (":a NOT :b", 3, expected(Expected::Continuation, "NOT")),
        (":a (:b)", 3, expected(Expected::Continuation, "(")),
        (":a;", 2, Reason::UnexpectedCharacter { found: ';' }),
        ("NOT", 3, expected(Expected::Condition, "the end")),
        (":a AND", 6, expected(Expected::Condition, "the end")),
        (":a AND OR :b", 7, expected(Expected::Condition, "OR")),
        ("OR :a", 0, expected(Expected::Condition, "OR")),
        (":a =", 4, expected(Expected::Literal, "the end")),
        (":a = = 1", 5, expected(Expected::Literal, "=")),
        (":a = 1 = 1", 7, expected(Expected::Continuation, "=")),
        ("()", 1, expected(Expected::Condition, ")")),
        ("(:a", 0, Reason::ParenthesisUnclosed),
        (":a AND ((:b)", 7, Reason::ParenthesisUnclosed),
        (":a)", 2, Reason::ParenthesisUnopened),
        ("(:a))", 4, Reason::ParenthesisUnopened),
        (":a = (1)", 5, expected(Expected::Literal, "(")),
        ("hasPrefix :a", 10, expected(Expected::Opening, ":a")),
        (r#"hasPrefix("a", "b")"#, 10, expected(Expected::Key, "\"a\"")),
        (r#"hasPrefix(:a "b")"#, 13, expected(Expected::Comma, "\"b\"")),
        ("hasPrefix(:a, 1)", 14, expected(Expected::Text, "1")),
        (r#"hasPrefix(:a, "b""#, 17, expected(Expected::Closing, "the end")),
        (r#"hasPrefix(:a, "b") = 1"#, 19, expected(Expected::Continuation, "=")),
        // Positions count characters, not bytes.
        (":a = \"東京\" x", 10, unknown("x")),
    ];
    for (text, position, reason) in rows {
        let error = Filter::parse(text).expect_err(text);
        assert_eq!(error, FilterError { position: *position, reason: reason.clone() }, "{text}");
        let caret = error.caret(text);
        let (shown, mark) = caret.split_once('\n').unwrap();
        assert!(shown.chars().count() == text.chars().count() && mark.chars().count() == position + 1, "{caret}");
        let sentence = error.reason.to_string();
        assert!(!sentence.is_empty() && !sentence.ends_with('.'), "{sentence}");
    }
}
