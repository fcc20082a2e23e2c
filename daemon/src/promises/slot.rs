//! A promise as words. This file alone knows both forms.

use gpuadmit_core::{
    book::ClassKey,
    promise::{Promise, RequestName},
    prompts::Prompts,
    request::{MAX_NAME_BYTES, MAX_PROMPTS, MAX_SEQUENCES, ReservationId},
    units::{Mono, Tokens},
};

/// Words of a name.
const NAME_WORDS: usize = MAX_NAME_BYTES / 8;
/// Words of numbers.
const NUMBERS: usize = 14;
/// Words of a slot. The first is the reservation's id, 0 in a free one.
pub(super) const SLOT_WORDS: usize = NUMBERS + 3 * NAME_WORDS;
/// Most tokens of one request: what is more was never promised.
const MOST_TOKENS: u64 = 1 << 39;
/// A number that is absent.
const NONE: u64 = u64::MAX;

/// `None`: it has a name that is longer than names may be.
pub(super) fn words(promise: &Promise) -> Option<[u64; SLOT_WORDS]> {
    let request = promise.request.as_ref();
    let name = request.map_or("", |request| &request.id);
    let texts = [&*promise.engine, &*promise.tenant, name];
    let lengths = texts.iter().rev().try_fold(0_u64, |all, text| {
        let length = u64::try_from(text.len()).ok()?;
        (text.len() <= MAX_NAME_BYTES).then_some(all << 16 | length)
    })?;
    let numbers: [u64; NUMBERS] = [
        promise.id.0,
        promise.admitted_at.0,
        promise.prompts.count.into(),
        promise.prompts.total.0,
        promise.prompts.longest.0,
        promise.uncached.0,
        promise.output.0,
        promise.granted.map_or(NONE, |granted| granted.0),
        promise.most.0,
        promise.n.into(),
        promise.class.0,
        request.map_or(NONE, |request| request.peer_uid.into()),
        request.map_or(0, |request| request.content),
        lengths,
    ];
    let mut words = [0; SLOT_WORDS];
    let named = texts.into_iter().flat_map(name_words);
    words.iter_mut().zip(numbers.into_iter().chain(named)).for_each(|(word, value)| *word = value);
    Some(words)
}

/// `None`: a free slot, or one that is damaged.
pub(super) fn promise(words: &[u64; SLOT_WORDS]) -> Option<Promise> {
    let (numbers, names) = words.split_first_chunk::<NUMBERS>()?;
    let [id, at, count, total, longest, uncached, output, granted, most, n, class, uid, content, lengths] =
        *numbers;
    let mut names = names.chunks_exact(NAME_WORDS).zip([0, 16, 32]);
    let mut name = || {
        let (words, shift) = names.next()?;
        let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
        let length = usize::try_from(lengths >> shift & 0xffff).ok()?;
        String::from_utf8(bytes.get(..length)?.to_vec()).ok()
    };
    let (engine, tenant, request) = (name()?, name()?, name()?);
    let request =
        u32::try_from(uid).ok().map(|peer_uid| RequestName { peer_uid, id: request.into(), content });
    let sizes = [total, longest, uncached, output, most, if granted == NONE { 0 } else { granted }];
    let possible = (1..=MAX_PROMPTS.into()).contains(&count)
        && (count..=count.saturating_mul(MAX_SEQUENCES.into())).contains(&n)
        && sizes.iter().all(|tokens| *tokens <= MOST_TOKENS);
    (id != 0 && possible).then_some(Promise {
        id: ReservationId(id),
        engine: engine.into(),
        admitted_at: Mono(at),
        prompts: Prompts {
            count: u32::try_from(count).ok()?,
            total: Tokens(total),
            longest: Tokens(longest),
        },
        uncached: Tokens(uncached),
        output: Tokens(output),
        granted: Some(granted).filter(|granted| *granted != NONE).map(Tokens),
        most: Tokens(most),
        n: u32::try_from(n).ok()?,
        class: ClassKey(class),
        tenant: tenant.into(),
        request,
    })
}

/// A name's bytes, little endian, with zeros behind.
fn name_words(name: &str) -> [u64; NAME_WORDS] {
    let mut words = [0; NAME_WORDS];
    for (word, bytes) in words.iter_mut().zip(name.as_bytes().chunks(8)) {
        let mut eight = [0; 8];
        eight.iter_mut().zip(bytes).for_each(|(to, from)| *to = *from);
        *word = u64::from_le_bytes(eight);
    }
    words
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    pub(in super::super) fn some(id: u64) -> Promise {
        Promise {
            id: ReservationId(id),
            engine: "vllm-8000".into(),
            admitted_at: Mono(5),
            prompts: Prompts { count: 2, total: Tokens(100), longest: Tokens(60) },
            uncached: Tokens(70),
            output: Tokens(20),
            granted: None,
            most: Tokens(3996),
            n: 4,
            class: ClassKey(u64::MAX),
            tenant: "t\u{e4}nant".into(),
            request: Some(RequestName { peer_uid: 1000, id: "r".repeat(128).into(), content: 77 }),
        }
    }

    #[test]
    fn a_promise_is_the_same_after_it_was_words() {
        let plain = Promise { request: None, granted: Some(Tokens(20)), tenant: "".into(), ..some(8) };
        for one in [some(7), plain] {
            assert_eq!(promise(&words(&one).unwrap()), Some(one));
        }
    }

    #[test]
    fn what_no_request_can_ask_for_was_never_promised() {
        for one in [
            Promise { n: 0, ..some(1) },
            Promise { n: 2 * 128 + 1, ..some(1) },
            Promise { prompts: Tokens(u64::MAX).into(), ..some(1) },
            Promise { prompts: Prompts::default(), ..some(1) },
            Promise { most: Tokens(1 << 40), ..some(1) },
            Promise { granted: Some(Tokens(u64::MAX - 1)), ..some(1) },
        ] {
            assert_eq!(promise(&words(&one).unwrap()), None, "{one:?}");
        }
    }

    #[test]
    fn what_does_not_fit_or_is_damaged_is_none() {
        assert_eq!(words(&Promise { engine: "e".repeat(129).into(), ..some(1) }), None);
        assert_eq!(promise(&[0; SLOT_WORDS]), None);
        assert_eq!(promise(&[u64::MAX; SLOT_WORDS]), None);
        let mut damaged = words(&some(1)).unwrap();
        damaged[NUMBERS] = u64::MAX;
        assert_eq!(promise(&damaged), None, "no UTF-8");
    }
}
