//! Properties of predictor and beliefs for every table, plausible or absurd.

#![allow(clippy::unwrap_used, reason = "a test that panics has failed")]

use proptest::collection::vec;
use proptest::option;
use proptest::prelude::*;
use tandem_models::interference::{
    Belief, ClassProfile, CoTenants, FitError, MeasuredPair, Offline, Online, RATE_MAX, RATE_MIN,
};

const NOISE: f64 = 0.02;

/// Plausible solo measurements, and impossible ones.
fn measurement() -> impl Strategy<Value = Option<f64>> {
    let absurd =
        prop_oneof![Just(0.0), Just(-3.0), Just(f64::MIN_POSITIVE), Just(f64::MAX), Just(f64::MIN)];
    option::of(prop_oneof![8 => 0.01..1.0, 2 => 1.0..1e5, 1 => absurd])
}

fn profile() -> impl Strategy<Value = ClassProfile> {
    let measured = (measurement(), measurement(), measurement(), measurement(), measurement());
    (0..4_u8, measured, any::<bool>()).prop_map(|(model, measured, amp)| ClassProfile {
        name: String::new(),
        model: format!("model {model}"),
        gpu_util: measured.0,
        bandwidth_util: measured.1,
        memory_mib: measured.2,
        steps_per_s: measured.3,
        batch: measured.4,
        amp,
    })
}

fn named(mut profiles: Vec<ClassProfile>) -> Vec<ClassProfile> {
    for (number, profile) in profiles.iter_mut().enumerate() {
        profile.name = format!("class {number}");
    }
    profiles
}

fn rate() -> impl Strategy<Value = f64> {
    let absurd = prop_oneof![Just(0.0001), Just(5.0), Just(0.0), Just(1.0), Just(f64::MAX)];
    prop_oneof![6 => 0.05..1.2, 1 => absurd]
}

type Table = (Vec<ClassProfile>, Vec<MeasuredPair>);

fn pair(classes: usize) -> impl Strategy<Value = MeasuredPair> {
    let pair = |(a, b, rate_a, rate_b)| MeasuredPair { a, b, rate_a, rate_b };
    (0..classes, 0..classes, rate(), rate()).prop_map(pair)
}

fn table() -> impl Strategy<Value = Table> {
    vec(profile(), 1..9).prop_flat_map(|profiles| {
        let classes = profiles.len();
        (Just(named(profiles)), vec(pair(classes), 3..25))
    })
}

/// A table in which slow-downs follow utilisations, which a predictor can learn.
fn sensible(classes: usize) -> Table {
    let util = |class: usize| 0.2 + 0.7 * ((class * 7) % classes) as f64 / classes as f64;
    let profile = |class: usize| ClassProfile {
        name: format!("class {class:02}"),
        model: format!("model {}", class / 2),
        gpu_util: Some(util(class)),
        bandwidth_util: Some(util(class) * 0.6),
        ..ClassProfile::default()
    };
    let rate = |a: usize, b: usize| 1.0 - 0.5 * util(a) * util(b);
    let pair =
        |(a, b): (usize, usize)| MeasuredPair { a, b, rate_a: rate(a, b), rate_b: rate(b, a) };
    let all = (0..classes).flat_map(|a| (a..classes).map(move |b| (a, b)));
    let pairs = all.filter(|(a, b)| (a * 3 + b) % 3 != 0).map(pair);
    ((0..classes).map(profile).collect(), pairs.collect())
}

fn assert_in_range(offline: &Offline, profiles: &[ClassProfile]) {
    for a in profiles {
        for b in profiles {
            let predicted = offline.predict(a, b);
            assert!((RATE_MIN..=RATE_MAX).contains(&predicted.rate), "{predicted:?}: {a:?}, {b:?}");
            assert!(predicted.rmse.is_finite() && predicted.rmse > 0.0, "{predicted:?}");
        }
    }
}

fn assert_sane(belief: Belief) {
    assert!((RATE_MIN..=RATE_MAX).contains(&belief.rate), "{belief:?}");
    assert!(belief.deviation.is_finite() && belief.deviation > 0.0, "{belief:?}");
    assert!(belief.cautious(1.0) <= belief.rate, "{belief:?}");
}

/// Every predicted bit.
fn bits(offline: &Offline, profiles: &[ClassProfile]) -> Vec<[u64; 2]> {
    let both = |a| profiles.iter().map(move |b| (a, b));
    let bits = |(a, b)| {
        let predicted = offline.predict(a, b);
        [predicted.rate.to_bits(), predicted.rmse.to_bits()]
    };
    profiles.iter().flat_map(both).map(bits).collect()
}

fn deviations(online: &Online, classes: u32) -> Vec<f64> {
    let pairs = (0..classes).flat_map(|a| (0..classes).map(move |b| (a, b)));
    pairs.map(|(a, b)| online.belief(a, b).deviation).collect()
}

fn learner(profiles: &[ClassProfile], pairs: &[MeasuredPair]) -> Online {
    let mut online = Online::new(Offline::fit(profiles, pairs, 1).unwrap());
    for profile in profiles {
        online.class(profile);
    }
    online
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(96))]

    #[test]
    fn predictions_are_rates(
        (profiles, pairs) in table(),
        unseen_classes in vec(profile(), 2),
        seed in 0..3_u64,
    ) {
        let offline = Offline::fit(&profiles, &pairs, seed).unwrap();
        let mut all = profiles;
        for (number, mut unseen) in unseen_classes.into_iter().enumerate() {
            unseen.name = format!("unseen {number}");
            all.push(unseen);
        }
        assert_in_range(&offline, &all);
    }

    #[test]
    fn beliefs_are_rates(
        (profiles, pairs) in table(),
        seen in vec((any::<u32>(), any::<u32>(), -1.0..6.0, 0.0..2.0), 0..40),
    ) {
        let mut online = learner(&profiles, &pairs);
        let classes = u32::try_from(profiles.len()).unwrap();
        for (a, b, rate, noise) in seen {
            online.observe(a % classes, b % classes, rate, noise);
            assert_sane(online.belief(a % classes, b % classes));
        }
        for a in 0..classes {
            (0..classes).for_each(|b| assert_sane(online.belief(a, b)));
        }
    }

    #[test]
    fn the_order_of_a_table_does_not_matter(
        ((profiles, pairs), flips) in (table(), vec(any::<bool>(), 25)),
        turn in any::<prop::sample::Index>(),
    ) {
        let known = Offline::fit(&profiles, &pairs, 1).unwrap();
        let count = profiles.len();
        let shift = turn.index(count);
        let mut moved = profiles.clone();
        moved.rotate_left(shift);
        let place = |class: usize| (class + count - shift) % count;
        let flipped = |(pair, flip): (&MeasuredPair, &bool)| {
            let MeasuredPair { a, b, rate_a, rate_b } = *pair;
            let (a, b) = (place(a), place(b));
            match flip {
                true => MeasuredPair { a: b, b: a, rate_a: rate_b, rate_b: rate_a },
                false => MeasuredPair { a, b, rate_a, rate_b },
            }
        };
        let mut others: Vec<MeasuredPair> = pairs.iter().zip(&flips).map(flipped).collect();
        others.reverse();
        others.rotate_left(turn.index(pairs.len()));
        let other = Offline::fit(&moved, &others, 1).unwrap();
        prop_assert_eq!(bits(&known, &profiles), bits(&other, &profiles));
    }

    #[test]
    fn fitting_twice_is_the_same((profiles, pairs) in table(), seed in any::<u64>()) {
        let fit = || Offline::fit(&profiles, &pairs, seed).unwrap();
        prop_assert_eq!(bits(&fit(), &profiles), bits(&fit(), &profiles));
    }

    /// Observations that agree with the prediction reduce the uncertainty of a pair and of related pairs.
    #[test]
    fn what_is_expected_never_widens_a_belief(
        (profiles, pairs) in table(),
        seen in vec((any::<u32>(), any::<u32>(), 0.005..0.2), 1..30),
    ) {
        let mut online = learner(&profiles, &pairs);
        let classes = u32::try_from(profiles.len()).unwrap();
        let mut before = deviations(&online, classes);
        for (a, b, noise) in seen {
            let (a, b) = (a % classes, b % classes);
            online.observe(a, b, online.belief(a, b).rate, noise);
            let after = deviations(&online, classes);
            for (after, before) in after.iter().zip(&before) {
                prop_assert!(*after <= before * (1.0 + 1e-12), "{before} became {after}");
            }
            before = after;
        }
    }

    #[test]
    fn partners_that_tell_are_candidates_and_leave_less_unknown(
        (profiles, pairs) in table(),
        seen in vec((any::<u32>(), any::<u32>(), 0.05..1.2), 0..10),
        class in any::<u32>(),
        count in 0..12_usize,
    ) {
        let mut online = learner(&profiles, &pairs);
        let classes = u32::try_from(profiles.len()).unwrap();
        for (a, b, rate) in seen {
            online.observe(a % classes, b % classes, rate, NOISE);
        }
        let candidates: Vec<u32> = (0..classes).collect();
        let next = online.next_experiments(class % classes, &candidates, count, NOISE);
        prop_assert_eq!(next.partners.len(), count.min(profiles.len()));
        let distinct: std::collections::BTreeSet<u32> = next.partners.iter().copied().collect();
        prop_assert_eq!(distinct.len(), next.partners.len());
        prop_assert!(next.rmse_before.is_finite() && next.rmse_after > 0.0, "{next:?}");
        prop_assert!(next.rmse_after <= next.rmse_before * (1.0 + 1e-9), "{next:?}");
    }

    #[test]
    fn state_survives_a_restart_and_goes_on_learning(
        (profiles, pairs) in table(),
        seen in vec((any::<u32>(), any::<u32>(), 0.05..1.2), 2..40),
    ) {
        let mut online = learner(&profiles, &pairs);
        let classes = u32::try_from(profiles.len()).unwrap();
        let (early, late) = seen.split_at(seen.len() / 2);
        for &(a, b, rate) in early {
            online.observe(a % classes, b % classes, rate, NOISE);
        }
        let text = serde_json::to_string(&online).unwrap();
        let mut restarted: Online = serde_json::from_str(&text).unwrap();
        prop_assert_eq!(&restarted, &online);
        prop_assert_eq!(bits(restarted.offline(), &profiles), bits(online.offline(), &profiles));
        for &(a, b, rate) in late {
            online.observe(a % classes, b % classes, rate, NOISE);
            restarted.observe(a % classes, b % classes, rate, NOISE);
        }
        prop_assert_eq!(&restarted, &online);
        let text = |online: &Online| serde_json::to_string(online).unwrap();
        prop_assert_eq!(text(&restarted), text(&online));
    }

    #[test]
    fn beliefs_converge_to_the_truth(
        truth in 0.1..1.1_f64,
        wobble in vec(-1.0..1.0, 64),
        (a, b) in (0..10_u32, 0..10_u32),
    ) {
        let (profiles, pairs) = sensible(10);
        let mut online = learner(&profiles, &pairs);
        for wobble in &wobble {
            online.observe(a, b, truth + NOISE * wobble, NOISE);
        }
        let belief = online.belief(a, b);
        prop_assert!((belief.rate - truth).abs() < 0.02, "{belief:?}, truth {truth}");
        prop_assert!(belief.deviation < NOISE);
    }

    #[test]
    fn drift_is_noticed_and_followed(
        before in 0.6..1.0_f64,
        drift in prop_oneof![-0.5..-0.15_f64, 0.15..0.4_f64],
        (a, b) in (0..10_u32, 0..10_u32),
    ) {
        let (profiles, pairs) = sensible(10);
        let mut online = learner(&profiles, &pairs);
        for _ in 0..50 {
            online.observe(a, b, before, NOISE);
        }
        let settled = online.belief(a, b);
        let mut widest = settled.deviation;
        for _ in 0..8 {
            online.observe(a, b, before + drift, NOISE);
            widest = widest.max(online.belief(a, b).deviation);
        }
        prop_assert!(widest > settled.deviation, "never wider than {settled:?}");
        let belief = online.belief(a, b);
        let off = (belief.rate - (before + drift)).abs();
        prop_assert!(off < 0.02, "{belief:?} after {settled:?} and a drift of {drift}");
    }
}

#[test]
fn degenerate_tables_give_rates_too() {
    let (profiles, _) = sensible(8);
    let pair = |a: usize, b: usize, rate: f64| MeasuredPair { a, b, rate_a: rate, rate_b: rate };
    let tables: [(&str, Vec<MeasuredPair>); 5] = [
        ("one class", (0..5).map(|_| pair(0, 0, 0.7)).collect()),
        ("one pair per class", (0..4).map(|at| pair(2 * at, 2 * at + 1, 0.5)).collect()),
        ("constant rates", (0..8).flat_map(|a| (a..8).map(move |b| pair(a, b, 0.9))).collect()),
        ("tiny rates", (0..8).map(|at| pair(at, (at + 1) % 8, 0.0001)).collect()),
        ("huge rates", (0..8).map(|at| pair(at, (at + 3) % 8, 5.0)).collect()),
    ];
    let unknown = |name: &str| ClassProfile { name: name.to_owned(), ..ClassProfile::default() };
    let twins: Vec<ClassProfile> = profiles.iter().map(|profile| unknown(&profile.name)).collect();
    for (name, pairs) in &tables {
        for profiles in [&profiles, &twins] {
            let offline =
                Offline::fit(profiles, pairs, 1).unwrap_or_else(|error| panic!("{name}: {error}"));
            assert_in_range(&offline, &[profiles.as_slice(), &[unknown("unseen")]].concat());
        }
    }
}

#[test]
fn impossible_observations_still_give_valid_rates() {
    let (profiles, pairs) = sensible(6);
    let mut online = learner(&profiles, &pairs);
    for (rate, noise) in [(f64::MAX, 0.0), (f64::MIN, 1e300), (1e200, 1e-300), (0.5, f64::MAX)] {
        for _ in 0..3 {
            online.observe(0, 1, rate, noise);
            for (a, b) in [(0, 1), (0, 2), (2, 1), (3, 4)] {
                assert_sane(online.belief(a, b));
            }
        }
    }
}

#[test]
fn observations_of_a_class_help_with_other_partners() {
    let (profiles, pairs) = sensible(12);
    let unseen = ClassProfile { name: "unseen".to_owned(), ..ClassProfile::default() };
    let mut online = learner(&profiles, &pairs);
    let new = online.class(&unseen);
    let (before, of_others) = (online.belief(new, 9), online.belief(2, 9));
    for partner in [1, 4, 7] {
        let expected = online.belief(new, partner).rate;
        online.observe(new, partner, expected - 0.2, NOISE);
    }
    let after = online.belief(new, 9);
    assert!(after.rate < before.rate && after.deviation < before.deviation, "{before:?} {after:?}");
    assert_eq!(
        online.belief(2, 9),
        of_others,
        "pairs that share no class with it stay as they are"
    );
}

#[test]
fn informative_partners_leave_less_uncertainty_than_others() {
    let (profiles, pairs) = sensible(12);
    let mut online = learner(&profiles, &pairs);
    let unseen = ClassProfile { name: "unseen".to_owned(), ..ClassProfile::default() };
    let new = online.class(&unseen);
    let all: Vec<u32> = (0..12).collect();
    // Remaining uncertainty beside unobserved classes, after three observations.
    let unknown_after = |three: [u32; 3]| {
        let mut online = online.clone();
        for partner in three {
            for (a, b) in [(new, partner), (partner, new)] {
                online.observe(a, b, online.belief(a, b).rate, NOISE);
            }
        }
        let rest = all.iter().filter(|class| !three.contains(class));
        let deviations = rest
            .flat_map(|&other| [(new, other), (other, new)])
            .map(|(a, b)| online.belief(a, b).deviation);
        deviations.sum::<f64>()
    };
    let next = online.next_experiments(new, &all, 3, NOISE).partners;
    let next = unknown_after(next.try_into().unwrap());
    let triples = (0..12)
        .flat_map(|one| (0..one).flat_map(move |two| (0..two).map(move |three| [one, two, three])));
    let others: Vec<f64> = triples.map(unknown_after).collect();
    let worse = others.iter().filter(|&&other| other > next).count();
    assert!(worse * 10 >= others.len() * 9, "better than {worse} of {} triples", others.len());
}

#[test]
fn before_anything_is_observed_beliefs_are_the_predictors() {
    let (profiles, pairs) = sensible(12);
    let mut online = learner(&profiles, &pairs);
    let unknown = |name: &str| ClassProfile { name: name.to_owned(), ..ClassProfile::default() };
    let all = [profiles, vec![unknown("unseen"), unknown("other unseen")]].concat();
    let numbers: Vec<u32> = all.iter().map(|profile| online.class(profile)).collect();
    for (a, &of_a) in all.iter().zip(&numbers) {
        for (b, &of_b) in all.iter().zip(&numbers) {
            let (predicted, belief) = (online.offline().predict(a, b), online.belief(of_a, of_b));
            assert!((predicted.rate - belief.rate).abs() < 1e-9, "{predicted:?} {belief:?}");
            assert!((predicted.rmse - belief.deviation).abs() < 1e-4, "{predicted:?} {belief:?}");
        }
    }
}

fn beside(classes: &[u32]) -> CoTenants {
    CoTenants { classes: classes.to_vec(), known_rate: 1.0 }
}

#[test]
fn a_rate_beside_one_other_is_the_pair_observation_itself() {
    let (profiles, pairs) = sensible(6);
    let online = learner(&profiles, &pairs);
    let clues = online.pair_observations(0, &[beside(&[3])], 0.6, NOISE);
    assert_eq!(clues.len(), 1);
    assert_eq!(clues[0].beside, 3);
    assert!((clues[0].rate - 0.6).abs() < 1e-12, "{clues:?}");
    assert!((clues[0].noise - NOISE).abs() < 1e-12, "{clues:?}");
    let halved = [CoTenants { classes: vec![3], known_rate: 0.5 }];
    let clues = online.pair_observations(0, &halved, 0.3, NOISE);
    assert!((clues[0].rate - 0.6).abs() < 1e-12, "what is known is taken out: {clues:?}");
}

#[test]
fn a_rate_among_several_is_less_certain_and_still_teaches() {
    let (profiles, pairs) = sensible(10);
    let mut online = learner(&profiles, &pairs);
    let product = |online: &Online| online.belief(0, 2).rate * online.belief(0, 5).rate;
    let seen = product(&online) - 0.2;
    for clue in online.pair_observations(0, &[beside(&[2, 5])], seen, NOISE) {
        assert!(clue.noise > NOISE, "{clue:?}");
        assert!(clue.rate < online.belief(0, clue.beside).rate, "{clue:?}");
    }
    let before = (product(&online) - seen).abs();
    for _ in 0..20 {
        for clue in online.pair_observations(0, &[beside(&[2, 5])], seen, NOISE) {
            online.observe(0, clue.beside, clue.rate, clue.noise);
        }
    }
    let after = (product(&online) - seen).abs();
    assert!(after < before / 10.0, "{before} became {after}");
    let twins = online.pair_observations(1, &[beside(&[4, 4])], 0.49, NOISE);
    assert_eq!(twins.len(), 1, "two jobs of one class are one pair: {twins:?}");
}

#[test]
fn only_pairs_on_the_slowest_gpu_learn() {
    let (profiles, pairs) = sensible(10);
    let mut online = learner(&profiles, &pairs);
    for _ in 0..50 {
        online.observe(0, 2, 0.5, NOISE);
        online.observe(0, 5, 0.9, NOISE);
    }
    let told = |seen: f64| -> Vec<u32> {
        let clues = online.pair_observations(0, &[beside(&[2]), beside(&[5])], seen, NOISE);
        clues.into_iter().map(|clue| clue.beside).collect()
    };
    assert_eq!(told(0.48), [2], "the slower one explains it");
    assert_eq!(told(0.7), [2], "it cannot be slower than what was seen");
    assert_eq!(told(1.0), [2, 5], "neither can");
    assert!(online.pair_observations(0, &[], 0.9, NOISE).is_empty());
}

#[test]
fn tables_that_are_too_small_or_too_large_are_errors() {
    let (profiles, pairs) = sensible(8);
    for count in 0..3 {
        let error = Offline::fit(&profiles, &pairs[..count], 1).unwrap_err();
        assert_eq!(error, FitError::TooFewPairs { pairs: count });
    }
    let profiles: Vec<ClassProfile> = (0..402)
        .map(|number| ClassProfile { name: number.to_string(), ..ClassProfile::default() })
        .collect();
    let pair = |at: usize| MeasuredPair { a: at, b: at + 1, rate_a: 0.9, rate_b: 0.8 };
    let pairs: Vec<MeasuredPair> = (0..401).map(pair).collect();
    let error = Offline::fit(&profiles, &pairs, 1).unwrap_err();
    assert_eq!(error, FitError::TooManyClasses { classes: 402 });
    // Classes without a pair do not count.
    assert!(Offline::fit(&profiles, &pairs[..20], 1).is_ok());
}
