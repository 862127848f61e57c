output "policies" {
  description = "Policy documents as JSON, by role: reader, writer, maintainer, auditor, spark, sink, repair."
  value       = local.policies
}

output "policy_arns" {
  description = "ARNs of the policies, by role; attach them to users or roles of your own."
  value       = { for role, policy in aws_iam_policy.role : role => policy.arn }
}

output "role_arns" {
  description = "ARNs of the roles that were asked for with `trusted`."
  value       = { for role, made in aws_iam_role.role : role => made.arn }
}
