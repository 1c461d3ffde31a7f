package edit

import (
	"encoding/json"
	"fmt"
	"strings"

	helmyaml "sigs.k8s.io/yaml"

	"github.com/keelson-io/keelson/api/v1alpha1"
)

// approvals reads a file of approvals strictly, like the registry.
func approvals(data []byte) ([]v1alpha1.Approval, error) {
	var f v1alpha1.Approvals
	if err := helmyaml.UnmarshalStrict(data, &f); err != nil {
		return nil, fmt.Errorf("it can't be read: %w", err)
	}
	if f.Kind != v1alpha1.KindApprovals {
		return nil, fmt.Errorf("its kind is %q, and not %s", f.Kind, v1alpha1.KindApprovals)
	}
	return f.Approvals, nil
}

// approvalLine formats one approval as in decision 005.
func approvalLine(a v1alpha1.Approval) string {
	return fmt.Sprintf("- {cluster: %s, component: %s, object: %s, hash: %s, because: %s}",
		scalar(a.Cluster), scalar(a.Component), scalar(a.Object), scalar(a.Hash), scalar(comment(a.Because)))
}

// scalar formats a string for a flow mapping. It is quoted if YAML would read it as something else.
func scalar(s string) string {
	plain := s != "" && !strings.ContainsFunc(s, func(r rune) bool {
		return (r < '0' || r > '9') && (r < 'a' || r > 'z') && (r < 'A' || r > 'Z') && !strings.ContainsRune(" ./_-:", r)
	})
	if plain {
		var got map[string]any
		if err := helmyaml.Unmarshal([]byte("{a: "+s+", b: c}"), &got); err == nil && got["a"] == s && len(got) == 2 {
			return s
		}
	}
	quoted, err := json.Marshal(s)
	if err != nil {
		return `""` // a string always encodes
	}
	return string(quoted)
}
