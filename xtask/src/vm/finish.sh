
sed 's/^/@vm skipped /' "$SHAPER_TEST_SKIPS"
echo "@vm finished"
$b poweroff -f
