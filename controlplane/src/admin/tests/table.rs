use super::{Access, Api, Dir, RouteFile, one};
use crate::admin::etag;
use axum::body::Body;
use axum::http::{HeaderMap, StatusCode, header};
use serde_json::json;

#[test]
fn if_match_is_read_as_the_standard_says() {
    use etag::Unmet::{Malformed, Missing, Stale, Weak};
    let cases: [(&[&str], _); 13] = [
        (&[], Err(Missing)),
        (&["\"2-a\""], Ok(())),
        (&["*"], Ok(())),
        (&["\"1-a\", \"2-a\""], Ok(())),
        (&["\"1-a\",\"2-a\",\"3-a\""], Ok(())),
        (&["\"1-a\"", "\"2-a\""], Ok(())),
        (&["\"1-a\""], Err(Stale)),
        (&["\"1,a\", \"2\""], Err(Stale)),
        (&[""], Err(Stale)),
        (&["W/\"2-a\""], Err(Weak)),
        (&["W/\"1-a\", \"2-a\""], Ok(())),
        (&["2-a"], Err(Malformed)),
        (&["\"2-a"], Err(Malformed)),
    ];
    for (values, expected) in cases {
        let mut headers = HeaderMap::new();
        for value in values {
            headers.append(header::IF_MATCH, value.parse().unwrap());
        }
        assert_eq!(etag::check(&headers, "\"2-a\""), expected, "{values:?}");
    }
}

#[test]
fn a_tag_names_one_table() {
    let table = |model: &str| serde_json::from_value::<Vec<_>>(one(model)["routes"].clone()).unwrap();
    let tag = etag::of(&table("a"), 1);
    assert_eq!(tag, etag::of(&table("a"), 1), "the same after a restart, if the table is");
    assert_ne!(tag, etag::of(&table("b"), 1));
    assert_ne!(tag, etag::of(&table("a"), 2));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn two_puts_one_wins() {
    let dir = Dir::new();
    let api = Api::new(Access::Loopback, Some(RouteFile::within(&dir.0)));
    for round in 0..20 {
        let tag = api.get("routes").await.header(header::ETAG).to_owned();
        let tables: Vec<_> = (0..8).map(|n| one(&format!("r{round}-{n}"))).collect();
        let puts = tables.iter().map(|table| {
            let (router, request) = (api.router.clone(), (tag.clone(), table.to_string()));
            tokio::spawn(async move {
                let api = Api { router, ..Api::open() };
                api.ask("PUT /admin/v1/routes", &format!("if-match: {}", request.0), request.1).await.status
            })
        });
        let mut won = Vec::new();
        for (n, put) in puts.collect::<Vec<_>>().into_iter().enumerate() {
            match put.await.unwrap() {
                StatusCode::OK => won.push(n),
                status => assert_eq!(status, StatusCode::PRECONDITION_FAILED),
            }
        }
        assert_eq!(won.len(), 1, "exactly one wins: {won:?}");
        let now = api.get("routes").await;
        assert_eq!(now.body["routes"][0]["model"], tables[won[0]]["routes"][0]["model"]);
        assert_eq!(now.body["route_epoch"], round + 2);
        let kept = RouteFile::within(&dir.0).load().unwrap().unwrap();
        assert_eq!(
            (kept.route_epoch, &kept.routes[0].model[..]),
            (round + 2, now.body["routes"][0]["model"].as_str().unwrap())
        );
    }
}

#[tokio::test]
async fn what_get_answers_can_be_put() {
    let api = Api::open();
    let before = api.get("routes").await;
    let after = api.put(before.header(header::ETAG), &before.body).await;
    assert_eq!((after.status, &after.body["routes"]), (StatusCode::OK, &before.body["routes"]));
    let full = json!({ "routes": [
        { "model": "a", "aliases": ["b", "c/d"], "targets": ["disaggregated"], "priority": -3,
          "backends": [{ "served_model": "x", "weight": 0.9 }, { "served_model": "y", "weight": 0.1 }], "cascade": [] },
        { "model": "e", "aliases": [], "targets": ["unified"], "backends": [],
          "cascade": [{ "model": "x", "accept_if": "min_logprob >= -2.5" }, { "model": "y" }] },
    ] });
    let put = api.put("*", &full).await;
    assert_eq!((put.status, &put.body["routes"]), (StatusCode::OK, &full["routes"]), "{}", put.body);
}

#[tokio::test]
async fn a_reset_goes_back_to_the_configuration() {
    let dir = Dir::new();
    let api = Api::new(Access::Loopback, Some(RouteFile::within(&dir.0)));
    let first = api.get("routes").await;
    assert_eq!(first.body["source"], "config");
    let set = api.put(first.header(header::ETAG), &one("x")).await;
    assert!(RouteFile::within(&dir.0).load().unwrap().is_some());
    let delete = |tag: &str| {
        let field = if tag.is_empty() { String::new() } else { format!("if-match: {tag}") };
        let api = &api;
        async move { api.ask("DELETE /admin/v1/routes", &field, Body::empty()).await }
    };
    assert_eq!(delete("").await.error().1, "if_match_required");
    assert_eq!(delete(first.header(header::ETAG)).await.error().1, "etag_mismatch");
    let reset = delete(set.header(header::ETAG)).await;
    assert_eq!((&reset.body["routes"], &reset.body["source"]), (&first.body["routes"], &json!("config")));
    assert_eq!(reset.body["route_epoch"], 3, "a change like any other");
    assert!(RouteFile::within(&dir.0).load().unwrap().is_none());
}

#[tokio::test]
async fn a_table_that_cannot_be_kept_is_not_taken() {
    let dir = Dir::new();
    // Where the directory should be stands a file.
    std::fs::write(&dir.0, "").unwrap();
    let api = Api::new(Access::Loopback, Some(RouteFile::within(&dir.0)));
    let answer = api.put("*", &one("x")).await;
    assert_eq!(answer.error(), (500, "internal_error", ""));
    assert!(answer.message().contains("routes.json"), "{}", answer.message());
    assert_eq!(api.get("routes").await.body["route_epoch"], 1);
    std::fs::remove_file(&dir.0).unwrap();
}

#[tokio::test]
async fn ten_thousand_routes_fit() {
    let api = Api::open();
    let route = |n: usize| {
        json!({ "model": format!("organisation/model-number-{n}"), "aliases": [format!("alias-{n}"), format!("other-{n}")],
                "backends": [{ "served_model": "org/m", "weight": 0.9 }, { "served_model": "org/n", "weight": 0.1 }] })
    };
    let table = json!({ "routes": (0..10_000).map(route).collect::<Vec<_>>() });
    let answer = api.put("*", &table).await;
    assert_eq!(answer.status, StatusCode::OK, "{}", answer.message());
    assert_eq!(api.fleet.route_table().0.len(), 10_000);
    let beyond = format!("{{\"routes\":[{}]}}", " ".repeat(8 << 20));
    let answer = api.ask("PUT /admin/v1/routes", "if-match: *", beyond).await;
    assert_eq!(answer.error(), (413, "request_too_large", ""));
}

#[tokio::test]
async fn explaining_tells_the_way_and_changes_nothing() {
    let api = Api::open();
    let tell = async |query: &str| api.get(&format!("route-explain?{query}")).await;
    for query in
        ["model=p&request_id=r1", "model=org%2Fm&prompt=hi", "model=pub&prompt=hi&prompt_kind=completion"]
    {
        let told = tell(query).await;
        assert_eq!(told.body["pick"], "e1", "{query}: {}", told.body);
        assert_eq!(told.body["served_model"], "org/m");
        assert_eq!(told.body["endpoints"][0]["candidate"], true);
        assert_eq!(tell(query).await.body, told.body, "asked again");
    }
    assert_eq!(tell("model=p").await.body["route"], "pub");
    assert!(tell("model=org/m").await.body["route"].is_null());
    api.fleet.drain("org/m", None);
    let none = tell("model=p").await;
    assert!(none.body["pick"].is_null() && none.body["no_pick"].is_string(), "{}", none.body);
    assert_eq!(tell("model=nobody").await.error(), (404, "model_not_found", ""));
    assert_eq!(tell("prompt=x").await.error(), (400, "", "model"));
    assert_eq!(tell("model=p&prompt=x&prompt_kind=poem").await.error(), (400, "", "prompt_kind"));
}
