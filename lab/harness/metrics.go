package harness

import (
	"context"
	"fmt"
	"net/http"
	"os"
	"regexp"
	"strconv"
	"strings"
)

// Served returns the address at which a process of Keelson serves "/metrics" or "webhooks". It
// reads the address from the process's log, and fails if the log has none yet.
func Served(log, what string) (string, error) {
	text, err := os.ReadFile(log)
	if err != nil {
		return "", fmt.Errorf("look for the address of %s: %w", what, err)
	}
	found := regexp.MustCompile(`serving ` + regexp.QuoteMeta(what) + `\b.* address=(\S+)`).FindSubmatch(text)
	if found == nil {
		return "", fmt.Errorf("keelson serves no %s yet (its log: %s)", what, log)
	}
	return string(found[1]), nil
}

// MetricsText returns the metrics that a process serves at an address.
func MetricsText(ctx context.Context, address string) ([]byte, error) {
	return Ask(ctx, http.MethodGet, "http://"+address+"/metrics", nil, nil)
}

// Metrics returns, for each pattern, the sum of the samples whose line starts with a match.
func Metrics(ctx context.Context, address string, patterns ...string) ([]float64, error) {
	text, err := MetricsText(ctx, address)
	if err != nil {
		return nil, err
	}
	sums := make([]float64, len(patterns))
	for i, p := range patterns {
		for _, sample := range regexp.MustCompile(`(?m)^`+p+`.*$`).FindAllString(string(text), -1) {
			n, err := strconv.ParseFloat(sample[strings.LastIndexByte(sample, ' ')+1:], 64)
			if err != nil {
				return nil, fmt.Errorf("metric %s: %w", sample, err)
			}
			sums[i] += n
		}
	}
	return sums, nil
}
