use super::{BEGIN, END, with_table};

#[test]
fn the_table_is_replaced_and_nothing_else() {
    let page = |table: &str| format!("# Before\n{BEGIN}{table}{END}after\n");
    assert_eq!(with_table(&page("| old |\n"), "| new |\n"), Some(page("| new |\n")));
    assert_eq!(with_table("no marks", "| new |\n"), None);
}
