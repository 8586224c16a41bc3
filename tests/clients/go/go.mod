module shaper-test-client

go 1.19
