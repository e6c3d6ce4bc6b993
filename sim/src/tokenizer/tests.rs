use proptest::prelude::*;

use super::*;

proptest! {
    /// Two texts share exactly the blocks that lie wholly within their common prefix.
    #[test]
    fn blocks_are_shared_exactly_as_far_as_the_text(common in "[a-z]{0,300}", a in "[0-4]{0,100}", b in "[5-9]{1,100}") {
        let block = 4;
        let one = Prompt::from_text(format!("{common}{a}").as_bytes(), block);
        let two = Prompt::from_text(format!("{common}{b}").as_bytes(), block);
        let shared = one.blocks.iter().zip(&two.blocks).take_while(|(x, y)| x == y).count();
        let limit = one.blocks.len().min(two.blocks.len());
        prop_assert_eq!(shared, limit.min(common.len() / (4 * BYTES_PER_TOKEN)));
    }

    #[test]
    fn token_ids_turn_back_into_the_text(text in "[^\\x00]{0,80}") {
        let ids = encode(text.as_bytes());
        prop_assert_eq!(u32::try_from(ids.len()).unwrap(), count(text.as_bytes()));
        prop_assert_eq!(decode(&ids), text);
    }
}

#[test]
fn ids_and_their_text_are_one_prompt() {
    let text = b"0123456789abcdef0123";
    assert_eq!(Prompt::from_ids(&encode(text), 2), Prompt::from_text(text, 2));
}
