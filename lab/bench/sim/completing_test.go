package sim

import (
	"context"
	"strings"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"

	"github.com/keelson-io/keelson/lab/harness/must"
)

// widget returns the CRD of a custom kind for these tests.
func widget(group string) *unstructured.Unstructured {
	return parsed(`
apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {name: widgets.` + group + `}
spec:
  group: ` + group + `
  scope: Namespaced
  names: {kind: Widget, plural: widgets, singular: widget}
  versions:
  - name: v1
    served: true
    storage: true
    subresources: {status: {}}
    schema:
      openAPIV3Schema:
        type: object
        properties:
          spec:
            type: object
            properties:
              size: {type: integer, default: 3}
              color: {type: string}
              parts:
                type: array
                x-kubernetes-list-type: map
                x-kubernetes-list-map-keys: [name]
                items: {type: object, required: [name], properties: {name: {type: string}, count: {type: integer}}}
          status:
            type: object
            properties: {phase: {type: string}}
`)
}

// define creates the CRD and waits until its kind is served.
func (w *world) define() string {
	w.Helper()
	group := w.namespace + ".example.com"
	must.Get(w.apply("customresourcedefinitions.apiextensions.k8s.io", widget(group), "one"))
	w.untilList("widgets."+group, func(err error) bool { return err == nil })
	return group
}

// untilList waits until the error of a list is as wanted.
func (w *world) untilList(resource string, wanted func(error) bool) {
	w.Helper()
	must.Limits{Patience: 3 * time.Minute, Every: 50 * time.Millisecond}.Until(w.Context(), func(ctx context.Context) {
		if _, err := w.of(resource).List(ctx, metav1.ListOptions{}); !wanted(err) {
			must.Failf("list %s: %w", resource, err)
		}
	})
}

func defining() map[string]func(*world) any {
	one := func(group, spec string) *unstructured.Unstructured {
		return parsed("{apiVersion: " + group + "/v1, kind: Widget, metadata: {name: a}, " + spec + "}")
	}
	return map[string]func(*world) any{
		"CustomResources": func(w *world) any {
			group := w.define()
			of := "widgets." + group
			made := must.Get(w.apply(of, one(group, "spec: {color: red, parts: [{name: p, count: 1}]}, status: {phase: forged}"), "one"))
			second := must.Get(w.apply(of, one(group, "spec: {parts: [{name: q}]}"), "two"))
			status := must.Get(w.apply(of, one(group, "status: {phase: Ready}"), "three", "status"))
			spec := must.Get(w.of(of).Patch(w.Context(), "a", types.MergePatchType, []byte(`{"status":{"phase":"Forged"},"spec":{"color":"blue"}}`), metav1.PatchOptions{FieldManager: "four"}))
			merged := must.Get(w.of(of).Patch(w.Context(), "a", types.MergePatchType, []byte(`{"status":{"phase":"Merged"},"spec":{"color":"green"}}`), metav1.PatchOptions{FieldManager: "five"}, "status"))
			var out []any
			for _, u := range []*unstructured.Unstructured{made, second, status, spec, merged} {
				u.SetAPIVersion("v1")
				out = append(out, anonymousOf(u), strings.ReplaceAll(owners(u), group, "group"))
			}
			return out
		},
		"CustomResourceRefused": func(w *world) any {
			group := w.define()
			_, err := w.apply("widgets."+group, one(group, "spec: {size: large}"), "one")
			if err == nil {
				w.Error("a text was taken for a number")
			}
			blind := must.Get(w.apply("widgets."+group, one(group, "spec: {size: 1}"), "one"))
			blind.SetResourceVersion("")
			_, blindly := w.of("widgets."+group).Update(w.Context(), blind, metav1.UpdateOptions{})
			w.refused(blindly, apierrors.IsInvalid, "must be specified for an update")
			return nil
		},
		"CustomResourcesEnd": func(w *world) any {
			group := w.define()
			must.Get(w.apply("widgets."+group, one(group, "spec: {size: 1}"), "one"))
			must.Do(w.of("customresourcedefinitions.apiextensions.k8s.io").Delete(w.Context(), "widgets."+group, metav1.DeleteOptions{}))
			w.untilList("widgets."+group, apierrors.IsNotFound)
			return nil
		},
	}
}

// completing tests objects that the API server completes, on creation and on change.
func completing() map[string]func(*world) any {
	out := map[string]func(*world) any{}
	for name, c := range map[string]struct{ resource, object, changed string }{
		"Deployment": {"deployments.apps", `
{apiVersion: apps/v1, kind: Deployment, metadata: {name: a, labels: {a: b}}, spec: {selector: {matchLabels: {a: b}}, template: {metadata: {labels: {a: b}},
 spec: {containers: [{name: c, image: "i:v1", ports: [{containerPort: 80}], resources: {requests: {cpu: "0.5"}}, readinessProbe: {httpGet: {path: /, port: 80}}}]}}}}`, "i:v1=i:v2"},
		"DaemonSet": {"daemonsets.apps", `
{apiVersion: apps/v1, kind: DaemonSet, metadata: {name: a}, spec: {selector: {matchLabels: {a: b}}, template: {metadata: {labels: {a: b}},
 spec: {hostNetwork: true, containers: [{name: c, image: "i:v1", ports: [{containerPort: 80}]}], volumes: [{name: v, configMap: {name: x}}, {name: h, hostPath: {path: /x}}]}}}}`, "i:v1=i:v2"},
		"StatefulSet": {"statefulsets.apps", `
{apiVersion: apps/v1, kind: StatefulSet, metadata: {name: a}, spec: {serviceName: s, selector: {matchLabels: {a: b}}, template: {metadata: {labels: {a: b}},
 spec: {containers: [{name: c, image: "i:v1"}]}}, volumeClaimTemplates: [{metadata: {name: d}, spec: {accessModes: [ReadWriteOnce], resources: {requests: {storage: 1Gi}}}}]}}`, "i:v1=i:v2"},
		"CronJob": {"cronjobs.batch", `
{apiVersion: batch/v1, kind: CronJob, metadata: {name: a}, spec: {schedule: "1 2 * * *", jobTemplate: {spec: {template: {spec: {restartPolicy: Never, containers: [{name: c, image: i}]}}}}}}`, "1 2=3 4"},
		"Headless":       {"services", `{apiVersion: v1, kind: Service, metadata: {name: a}, spec: {clusterIP: None, selector: {a: b}, ports: [{name: p, port: 80}]}}`, "80=81"},
		"ServiceAccount": {"serviceaccounts", `{apiVersion: v1, kind: ServiceAccount, metadata: {name: a}, automountServiceAccountToken: false}`, "false=true"},
		"Secret":         {"secrets", `{apiVersion: v1, kind: Secret, metadata: {name: a}, data: {x: eWVz}}`, "eWVz=bm8h"},
		"Ingress": {"ingresses.networking.k8s.io", `
{apiVersion: networking.k8s.io/v1, kind: Ingress, metadata: {name: a}, spec: {rules: [{host: h.example, http: {paths: [{path: /, pathType: Prefix, backend: {service: {name: s, port: {name: p}}}}]}}]}}`, "h.example=i.example"},
		"NetworkPolicy": {"networkpolicies.networking.k8s.io", `
{apiVersion: networking.k8s.io/v1, kind: NetworkPolicy, metadata: {name: a}, spec: {podSelector: {}, ingress: [{ports: [{port: 80}]}]}}`, "80=81"},
		"PodDisruptionBudget": {"poddisruptionbudgets.policy", `{apiVersion: policy/v1, kind: PodDisruptionBudget, metadata: {name: a}, spec: {maxUnavailable: 1, selector: {matchLabels: {a: b}}}}`, "maxUnavailable: 1=maxUnavailable: 2"},
		"Role":                {"roles.rbac.authorization.k8s.io", `{apiVersion: rbac.authorization.k8s.io/v1, kind: Role, metadata: {name: a}, rules: [{apiGroups: [""], resources: [pods], verbs: [get]}]}`, "get=list"},
		"RoleBinding": {"rolebindings.rbac.authorization.k8s.io", `
{apiVersion: rbac.authorization.k8s.io/v1, kind: RoleBinding, metadata: {name: a}, roleRef: {apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: view}, subjects: [{kind: ServiceAccount, name: s, namespace: other}]}`, "name: s=name: t"},
		"Claim": {"persistentvolumeclaims", `{apiVersion: v1, kind: PersistentVolumeClaim, metadata: {name: a}, spec: {accessModes: [ReadWriteOnce], resources: {requests: {storage: 1Gi}}}}`, "name: a=name: a, labels: {l: v}"},
	} {
		out["Complete"+name] = func(w *world) any {
			made := must.Get(w.apply(c.resource, parsed(c.object), "one"))
			from, to, _ := strings.Cut(c.changed, "=")
			changed := must.Get(w.apply(c.resource, parsed(strings.ReplaceAll(c.object, from, to)), "one"))
			for _, u := range []*unstructured.Unstructured{made, changed} {
				delete(u.Object, "status") // the simulation writes statuses as controllers do
			}
			return []any{anonymousOf(made), anonymousOf(changed), owners(made), owners(changed)}
		}
	}
	return out
}
